"""Section `generate_config`: the rollout engine, its layout and its sampling."""

from typing import Annotated, Literal

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
    Sequences,
    Tokens,
)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SamplingConfig:
    """How responses are drawn during training. The held-out file is answered greedily."""

    temperature: Annotated[float, Field(ge=0.01, le=100.0)] = 1.0
    """Divides the logits, in the rollout and in the trainer alike. vLLM takes no lower one."""
    max_tokens: Tokens = 128
    """Longest response in tokens."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus of the distribution that is sampled from. Below 1 the log-prob gap grows."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] = -1
    """Most likely tokens that are sampled from. -1 or 0 keeps all."""
    min_p: Fraction = 0.0
    """Least probability of a token, relative to the most likely one."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A response ends behind the token that completes one of these texts, special tokens' included;
    they are part of it."""
    stop_token_ids: tuple[Count, ...] = ()
    """Tokens that end a response besides those that end a text and a turn of this model."""

    @property
    def cuts(self) -> str:
        """The keys by which a part of the distribution is drawn from; empty for none."""
        cuts = {
            f"top_p={self.top_p:g}": self.top_p < 1,
            f"top_k={self.top_k}": self.top_k > 0,
            f"min_p={self.min_p:g}": self.min_p > 0,
        }
        return ", ".join(name for name, is_cut in cuts.items() if is_cut)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class GenerateConfig:
    """The engine of each rollout replica."""

    backend: str = ""
    """The rollout layout as an allocation string, such as `vllm:d4t2`, in place of the keys that it
    stands for; see [Allocation strings](allocation-strings.md). `sglang:` needs `servers`."""
    servers: tuple[str, ...] = ()
    """Addresses of vLLM or SGLang servers that generate in the place of processes of the run, such
    as `http://127.0.0.1:8000`; one for each replica, with `rl_config.use_integrated_worker: false`.
    [External engines](../how-to/external-engines.md) says how to start them."""
    server_token_file: PathText | None = None
    """File that holds the token of all `servers`, and nothing else."""
    router: Literal["vllm-router"] | None = None
    """Who deals the requests of the run to its `servers`, all of vLLM: vllm-router, which the run
    starts and ends, on this machine. None asks each server itself."""
    servers_are_remote: bool = False
    """The `servers` may be on other machines than this one. Their control routes take no token, so
    whoever reaches one commands it: say so of a network of the run's own machines only."""
    infer_tensor_parallel_size: PositiveInt = 1
    """Rollout tensor-parallel size; may differ from the training one."""
    infer_pipeline_parallel_size: Literal[1] = 1
    """Rollout pipeline-parallel size. This version rolls out with 1 stage."""
    infer_expert_parallel_size: PositiveInt = 1
    """Ranks that share the experts of a layer as whole experts. 1 cuts each expert over
    `infer_tensor_parallel_size`, the only other value that this version rolls out with."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the rollout weights and of the KV cache."""
    max_num_seqs: Sequences = 64
    """Sequences that one replica decodes at a time."""
    max_model_len: Tokens = 2048
    """Longest sequence in tokens, prompt and response together, that the engine accepts."""
    max_num_batched_tokens: Tokens = 2048
    """Tokens that one replica processes in one engine step."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of a device's memory that all regions together may take during rollout. The KV cache
    gets what rollout weights and regions that stay leave of it, unless `kv_cache_mib` is set. The
    rest is for the engine's activations and the buffers of libraries."""
    kv_cache_mib: Mib | None = None
    """Size of each worker's KV cache in MiB. None derives it from `gpu_memory_utilization`."""
    enforce_eager: bool | None = None
    """Run the engine without graph capture. None captures on GPUs, and neither on a CPU nor on
    NPUs; [why](../how-to/faster-rollouts.md#graphs)."""
    enable_prefix_caching: bool = True
    """Share the KV cache of equal prompt prefixes, as the samples of one prompt have. New weights
    begin with an empty cache."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""
    offload_train_optimizer: bool = True
    """Move optimizer state to the host while the trainer does not update."""
    offload_train_grad: bool = True
    """Release gradient buffers while the trainer does not update."""
    offload_train_param: bool = True
    """Move the training weights to the host during rollout."""
    rank_map: Literal["best", "default"] = "best"
    """Order of the training ranks: `best` is the one with the fewest reshard bytes among those that
    the training engine's groups can be given, `default` the engine's own."""
    reshard_bucket_mib: Mib = 256
    """Bound on the messages that a worker has in flight while weights are resharded, in MiB."""
    reshard_timeout_seconds: Seconds = 300
    """Longest wait for a peer during a reshard; beyond it the run fails and names the peer."""
    verify_weights: Literal["off", "first", "always"] = "first"
    """After which reshards the rollout weights are compared with the training side, by a 64-bit
    checksum of each slice: none, the first of the run, or each."""
    sampling_config: SamplingConfig = SamplingConfig()
    """How responses are drawn during training."""
