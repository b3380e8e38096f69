"""Section `generate_config`: the rollout engine, its layout and its sampling."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import (
    LARGEST,
    SECTION,
    Count,
    Fraction,
    Mib,
    PathText,
    PositiveInt,
    Seconds,
    SequenceCount,
    TokenCount,
    inherited_values,
)

GraphMode = Literal["FULL_DECODE_ONLY", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
"""Names of vLLM's `CUDAGraphMode`, which Ascend's plugin reads too."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class Truncation:
    """The tokens that can be sampled at all: by default the full distribution."""

    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus of the distribution that is sampled from. In training, a value below 1 increases the
    log-prob gap."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] = -1
    """Number of most likely tokens that are sampled from. -1 or 0 keeps all."""
    min_p: Fraction = 0.0
    """Smallest probability of a token, relative to the most likely one."""

    @property
    def cuts(self) -> str:
        """The options that truncate the distribution; empty for none."""
        cuts = {
            f"top_p={self.top_p:g}": self.top_p < 1,
            f"top_k={self.top_k}": self.top_k > 0,
            f"min_p={self.min_p:g}": self.min_p > 0,
        }
        return ", ".join(name for name, is_cut in cuts.items() if is_cut)

    def unverified(self) -> dict[str, float]:
        """Return the options in use with which the engine does not verify drafts, and values."""
        return {"min_p": self.min_p} if self.min_p else {}

    def truncation(self) -> dict[str, Any]:
        """Return the keys of this class and their values, without those of a larger section."""
        return inherited_values(self, Truncation)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SamplingConfig(Truncation):
    """Sampling of responses during training. The held-out file is answered greedily."""

    temperature: Annotated[float, Field(ge=0.01, le=2.0)] = 1.0
    """Divides the logits, in the rollout and in the trainer. vLLM accepts no other values."""
    max_tokens: TokenCount = 128
    """Longest response in tokens."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A response ends after the token that completes one of these strings, which may contain
    special tokens; the string is part of the response."""
    stop_token_ids: tuple[Count, ...] = ()
    """Tokens that end a response, in addition to the model's own end-of-text and end-of-turn
    tokens."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SpeculativeConfig:
    """Draft tokens that the engine verifies together, in one step; the keys are vLLM's."""

    method: Literal["ngram", "draft_model"] | None = None
    """Where drafts come from: `ngram` copies what followed the last tokens where they occurred
    before in the same sequence, `draft_model` is a smaller model. None makes no drafts;
    [when it pays](../how-to/faster-rollouts.md#drafts)."""
    model: PathText | None = None
    """Folder of the model for `draft_model`, in Hugging Face format, with the policy's tokenizer.
    Its weights do not change during the run."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=32)] = 3
    """Maximum number of tokens of a draft."""
    prompt_lookup_max: Annotated[int, Field(ge=1, le=64)] = 4
    """Maximum number of last tokens to look for; the longest that occurred before is used."""
    prompt_lookup_min: Annotated[int, Field(ge=1, le=64)] = 2
    """Minimum number of last tokens to look for. Smaller ones draft more often, and are accepted
    less often."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class GenerateConfig:
    """The engine of each rollout replica."""

    backend: str = ""
    """The rollout layout as an allocation string, such as `vllm:d4t2`, instead of the keys that it
    sets; see [Allocation strings](allocation-strings.md). `sglang:` needs servers."""
    servers: tuple[str, ...] = ()
    """Addresses of vLLM or SGLang servers that generate instead of processes of the run, such as
    `http://127.0.0.1:8000`; one per replica, with `rl_config.use_integrated_worker: false`. See
    [External engines](../how-to/external-engines.md) for how to start them."""
    servers_file: PathText | None = None
    """File with the addresses instead of `servers`, one per line: servers join and leave a running
    run as lines are added and removed, up to as many as the rollout has replicas."""
    server_token_file: PathText | None = None
    """File that contains only the token of all servers."""
    router: Literal["vllm-router"] | None = None
    """Distributes the run's requests to its servers, all of vLLM: vllm-router, which the run
    starts and ends on this machine. None sends requests to each server directly."""
    servers_are_remote: bool = False
    """Allow servers on other machines. Their control routes take no token, so any client that
    reaches a server can control it: use this only in a private network of the run's machines."""
    infer_tensor_parallel_size: PositiveInt = 1
    """Rollout tensor-parallel size; may differ from the training one."""
    infer_pipeline_parallel_size: PositiveInt = 1
    """Number of pipeline stages of a rollout replica: each holds some of the layers."""
    infer_expert_parallel_size: PositiveInt = 1
    """Number of ranks that distribute the experts of a layer as whole experts. 1 splits each expert
    over `infer_tensor_parallel_size`, which is the only other value that this version supports."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Data type of the rollout weights and of the KV cache."""
    quantization: Literal["int8"] | None = None
    """Data type of the matrices of the layers, if another. `int8` rounds them at each transfer of
    weights, with a scale for each row; the engine rounds their inputs, with a scale for each token
    (W8A8). [What it saves and costs](../how-to/quantise-rollouts.md)."""
    max_num_seqs: SequenceCount = 64
    """Number of sequences that one replica decodes concurrently."""
    max_model_len: TokenCount = 2048
    """Longest sequence in tokens, prompt and response together, that the engine accepts."""
    max_num_batched_tokens: TokenCount = 2048
    """Tokens that one replica processes in one engine step."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Fraction of a device's memory for all regions together during rollout. The KV cache gets what
    rollout weights and resident regions leave of it, unless `kv_cache_mib` is set. The rest is for
    the engine's activations and the buffers of libraries."""
    kv_cache_mib: Mib | None = None
    """Size of each worker's KV cache in MiB. None derives it from `gpu_memory_utilization`."""
    enforce_eager: bool | None = None
    """Run the engine without graph capture. None captures on GPUs, but not on CPUs and NPUs;
    [why](../how-to/faster-rollouts.md#graphs)."""
    cudagraph_mode: GraphMode | None = None
    """What graphs contain, in vLLM's words, on GPUs and NPUs: whole decode steps
    (`FULL_DECODE_ONLY`), the parts between attention of every step (`PIECEWISE`), whole steps
    (`FULL`), or decode steps whole and others in parts. None is the engine's default, on NPUs
    `FULL_DECODE_ONLY`; they do not support parts. Needs graphs."""
    cudagraph_capture_sizes: tuple[SequenceCount, ...] | None = None
    """Sizes of batches with a graph of their own, in tokens of a step: other batches are padded to
    the next size, or run without graphs above the largest. Fewer sizes take less memory and start
    sooner. None is the engine's default, on NPUs 1, 2, 4, 8, 16, 24, 32, 48 and so on, up to
    `max_num_seqs`. Needs graphs."""
    batch_invariant: bool = False
    """Make the log-probs of a token independent of the other tokens of a batch, in the engine and,
    as far as it uses the same kernels, in the trainer; slower;
    [what it needs](../explanation/numerics.md#a-gap-of-zero)."""
    kv_block_tokens: Annotated[int, Field(ge=16, le=1 << 16)] | None = None
    """Tokens of a block of the KV cache; only whole blocks of a prefix are shared. Smaller blocks
    help conversations with short turns. None is the engine's default: 128 on CPUs and NPUs, 16 on
    most GPUs. CPUs prefer multiples of 32."""
    enable_prefix_caching: bool = True
    """Share the KV cache of equal prompt prefixes, such as those of the samples of one prompt. The
    cache is emptied when weights change."""
    speculative_config: SpeculativeConfig = SpeculativeConfig()
    """Draft tokens of the engine."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""
    offload_train_optimizer: bool = True
    """Move optimizer state to the host except during updates."""
    offload_train_grad: bool = True
    """Release gradient buffers except during updates."""
    offload_train_param: bool = True
    """Move the training weights to the host during rollout."""
    rank_map: Literal["best", "default"] = "best"
    """Order of the training ranks: `best` has the fewest reshard bytes among the orders that the
    training engine's groups support, `default` is the engine's own."""
    reshard_bucket_mib: Mib = 256
    """Maximum MiB of messages that a worker has in flight while weights are resharded."""
    reshard_timeout_seconds: Seconds = 300
    """Longest wait for a peer during a reshard; after that the run fails and names the peer."""
    verify_weights: Literal["off", "first", "always"] = "first"
    """Which reshards to verify, by a 64-bit checksum of each slice of the rollout weights and of
    the training side: none, the first of the run, or each."""
    sampling_config: SamplingConfig = SamplingConfig()
    """Sampling of responses during training."""

    @property
    def is_exact(self) -> bool:
        """Whether the engine rounds neither weights nor activations of a float32 model."""
        return self.dtype == "float32" and self.quantization is None

    @property
    def ranks_per_replica(self) -> int:
        """Number of devices of a replica."""
        return self.infer_tensor_parallel_size * self.infer_pipeline_parallel_size

    @property
    def is_served(self) -> bool:
        """Whether servers generate instead of processes of the run."""
        return bool(self.servers) or self.servers_file is not None
