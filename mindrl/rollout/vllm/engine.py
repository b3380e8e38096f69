"""The vLLM adapter: one engine inside the worker's process.

The engine starts with dummy weights; the first reshard gives it real ones. Between rollouts
it sleeps: its weights and its KV cache are off the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from vllm import LLM, ModelRegistry, SamplingParams, TokensPrompt
from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM, DeepseekV3ForCausalLM
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.phi3 import Phi3ForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from mindrl.batch.rollouts import Responses
from mindrl.platform.device_memory import give_back_unused
from mindrl.rollout.sampling import Sampling
from mindrl.rollout.vllm.random_state import own_random_state
from mindrl.rollout.vllm.shards import EngineShards

_MODELS = (
    LlamaForCausalLM,
    MistralForCausalLM,
    Phi3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
    DeepseekV2ForCausalLM,
    DeepseekV3ForCausalLM,
)

EngineTag = Literal["weights", "kv_cache"]
"""What the engine gives back and takes apart from the rest, in its own words."""

_LEAST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How one rollout replica runs."""

    model_path: str
    device_type: str
    tensor_parallel_size: int
    enable_expert_parallel: bool
    """Whether the ranks of a replica share the experts whole; else each expert is cut."""
    dtype: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    """Of each rank; the engine takes the whole blocks that fit."""
    enforce_eager: bool
    enable_prefix_caching: bool
    trust_remote_code: bool
    seed: int
    collective_timeout_seconds: int
    """A collective between the ranks of a replica that lasts longer raises."""
    platform_options: Mapping[str, object]


class EngineRegion:
    """The engine's weights or its KV cache, as the account of the device sees them."""

    keeps = False

    def __init__(self, engine: "RolloutEngine", tag: EngineTag, nbytes: int) -> None:
        """Speak for a part of the engine that takes `nbytes` while it is awake."""
        self.engine = engine
        self.tag: EngineTag = tag
        self.nbytes = nbytes

    def device_bytes(self) -> int:
        """Return what is on the device now."""
        return self.engine.device_bytes(self.tag)

    def onload(self) -> int:
        """Allocate it; nothing is copied."""
        # The engine has an allocator of its own, to which torch's freed blocks are not free.
        give_back_unused(self.engine.settings.device_type)
        self.engine.wake(self.tag)
        return 0

    def offload(self) -> int:
        """Put the whole engine to sleep, which knows no other way; nothing is copied."""
        self.engine.sleep()
        return 0

    def changed(self) -> None:
        """Do nothing: no copy is kept."""


class RolloutEngine:
    """A vLLM engine that shares its process with the trainer."""

    def __init__(self, settings: EngineSettings) -> None:
        """Start the engine, awake, with weights that mean nothing. A collective over all ranks."""
        # A class object instead of a name spares a subprocess that imports all of vLLM.
        for model in _MODELS:
            ModelRegistry.register_model(model.__name__, model)
        self.settings = settings
        with own_random_state(settings.seed):
            self.llm = LLM(
                model=settings.model_path,
                load_format="dummy",
                skip_tokenizer_init=True,
                distributed_executor_backend="external_launcher",
                tensor_parallel_size=settings.tensor_parallel_size,
                enable_expert_parallel=settings.enable_expert_parallel,
                dtype=settings.dtype,
                seed=settings.seed,
                max_num_seqs=settings.max_num_seqs,
                max_model_len=settings.max_model_len,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                # The size of the cache is given. All else that this share does is to refuse a
                # start where less than it is free, whoever has the rest.
                gpu_memory_utilization=_LEAST_SHARE,
                kv_cache_memory_bytes=settings.kv_cache_bytes,
                enforce_eager=settings.enforce_eager,
                enable_prefix_caching=settings.enable_prefix_caching,
                trust_remote_code=settings.trust_remote_code,
                # Of the distribution that is sampled from: after temperature and truncation.
                logprobs_mode="processed_logprobs",
                disable_log_stats=True,
                distributed_timeout_seconds=settings.collective_timeout_seconds,
                cpu_distributed_timeout_seconds=settings.collective_timeout_seconds,
                **settings.platform_options,
            )
        self.awake: set[EngineTag] = {"weights", "kv_cache"}
        self.regions: dict[EngineTag, EngineRegion] = {
            "weights": EngineRegion(self, "weights", self.shards().nbytes()),
            "kv_cache": EngineRegion(self, "kv_cache", self._kv_cache_bytes()),
        }

    def sleep(self) -> None:
        """Take weights and KV cache off the device; their contents are lost."""
        if self.awake:
            self.llm.sleep(level=2)
            self.awake.clear()

    def wake(self, tag: EngineTag) -> None:
        """Give the weights their memory back, or the KV cache its own, empty.

        The weights have to be there first, and have to be loaded through `shards`.
        """
        self.llm.wake_up(tags=[tag])
        self.awake.add(tag)
        if tag == "kv_cache":
            self.llm.reset_prefix_cache()

    def device_bytes(self, tag: EngineTag) -> int:
        """Return what is on the device of the weights or of the KV cache.

        On the host that is what their storages hold. A device's memory is unmapped behind its
        storages while the engine sleeps, so there the engine is believed.
        """
        if self.settings.device_type == "cpu":
            return int(self._worker.resident_bytes()[tag])
        return self.regions[tag].nbytes if tag in self.awake else 0

    @property
    def _worker(self) -> Any:
        return self.llm.llm_engine.model_executor.driver_worker.worker

    def _kv_cache_bytes(self) -> int:
        caches = self._worker.model_runner.kv_caches
        tensors = chain.from_iterable(
            cache if isinstance(cache, (list, tuple)) else (cache,) for cache in caches
        )
        storages = {tensor.untyped_storage() for tensor in tensors}
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    def shards(self) -> EngineShards:
        """Return where this rank's shards of all weights go, for one load of them."""
        return EngineShards(self._worker)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer each prompt once, in order.

        All ranks of a replica must make the same call. Each sequence is drawn with its own
        seed, so it does not depend on which others share its batch or its replica.

        Args:
            prompts: Token ids; repeat a prompt to sample it more than once.
            sampling: Shared by all prompts.
            seeds: One for each prompt.
        """
        if not prompts:
            return Responses.of([], [], [])
        section, greedy = sampling.section, sampling.is_greedy
        with own_random_state(self.settings.seed):
            outputs = self.llm.generate(
                [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts],
                [
                    SamplingParams(
                        # At temperature 0 the engine ignores the three that cut a distribution.
                        temperature=0.0 if greedy else section.temperature,
                        max_tokens=section.max_tokens,
                        top_p=section.top_p,
                        top_k=section.top_k,
                        min_p=section.min_p,
                        stop_token_ids=list(sampling.stop_token_ids),
                        seed=None if greedy else seed,
                        logprobs=None if greedy else 0,
                        detokenize=False,
                    )
                    for seed in seeds
                ],
                use_tqdm=False,
            )
        answers = [output.outputs[0] for output in outputs]
        return Responses.of(
            token_ids=[answer.token_ids for answer in answers],
            logprobs=[_logprobs(answer) for answer in answers],
            finished=[answer.finish_reason == "stop" for answer in answers],
        )


def _logprobs(answer: Any) -> list[float]:
    """Return the log-prob of each token of a completion; 0 in a greedy one, which has none."""
    if not answer.logprobs:
        return [0.0] * len(answer.token_ids)
    return [
        entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
