"""The vLLM adapter: one engine inside the worker's process.

The engine starts with dummy weights; the first reshard loads real ones. Between rollouts it sleeps:
its weights and its KV cache are off the device.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import get_pp_group, get_tp_group

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses
from mindrl.batch.route_keys import RoutePart
from mindrl.config.generate import GenerateConfig
from mindrl.config.images import ImageConfig
from mindrl.models.description import MoeDescription
from mindrl.models.placement import Shape
from mindrl.observability.progress import PROGRESS, tick
from mindrl.observability.trace import span
from mindrl.observability.units import mib_text
from mindrl.platform.device import Platform
from mindrl.platform.device_engine import capture_without_compiling, engine_options
from mindrl.platform.device_memory import finish_device_work, free_bytes, give_back_unused
from mindrl.platform.leftovers import Leftovers
from mindrl.rollout.engine import EngineTag, Request, Sampling
from mindrl.rollout.parameters import vllm_parameters
from mindrl.rollout.vllm.draft_model import loaded_draft
from mindrl.rollout.vllm.engine_counts import EngineCounts
from mindrl.rollout.vllm.model_classes import register_models
from mindrl.rollout.vllm.options import rollout_options
from mindrl.rollout.vllm.pictures import EnginePictures
from mindrl.rollout.vllm.placeholders import require_same
from mindrl.rollout.vllm.rounds import Rounds, token_logprobs
from mindrl.rollout.vllm.routes import EngineRoutes
from mindrl.rollout.vllm.shards import EngineShards
from mindrl.rollout.vllm.shared_queues import remove_names
from mindrl.rollout.vllm.whole_tensors import WholeTensors

_LEAST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """The model of an engine."""

    folder: str
    whole: Mapping[str, Shape] | None = None
    """For a family without known sharding: the whole tensors to load."""
    images: ImageConfig | None = None
    """Where pictures are, for a model that reads some."""
    routes: MoeDescription | None = None
    """Experts of a model whose routes are kept; None keeps none."""


class VllmEngine:
    """A vLLM engine in the trainer's process; see `RolloutEngine`."""

    def __init__(
        self,
        model: EngineModel,
        generate: GenerateConfig,
        platform: Platform,
        *,
        kv_cache_bytes: int,
        seed: int,
        timeout_seconds: int,
    ) -> None:
        """Start the engine, awake, with dummy weights. A collective over all ranks.

        `kv_cache_bytes` are per rank; the engine uses the whole blocks that fit. A collective
        between the ranks of a replica raises after `timeout_seconds`.
        """
        _prepare(model, platform)
        self.device_type, self.seed = platform.device_type, seed
        self._pictures = None if model.images is None else EnginePictures(model.images)
        self._whole = model.whole
        options = {
            **rollout_options(model.folder, generate, platform, seed),
            **engine_options(platform, batch_invariant=generate.batch_invariant),
            **({} if self._pictures is None else self._pictures.options()),
            # A graph does not call the routers.
            **({} if model.routes is None else {"enforce_eager": True}),
        }
        with _own_random_state(seed):
            self.llm = LLM(
                **options,
                # Only stop strings and pictures need a tokenizer.
                skip_tokenizer_init=not generate.sampling_config.stop and self._pictures is None,
                distributed_executor_backend="external_launcher",
                # The cache size is given. This share only makes the start fail if less memory is
                # free, even if another process uses the rest.
                gpu_memory_utilization=_LEAST_SHARE,
                kv_cache_memory_bytes=kv_cache_bytes,
                disable_log_stats=True,
                distributed_timeout_seconds=timeout_seconds,
                cpu_distributed_timeout_seconds=timeout_seconds,
            )
        remove_names()
        self.stages = generate.infer_pipeline_parallel_size
        """Number of pipeline stages."""
        if self.stages > 1:
            allocate_stage_inputs(self._worker.model_runner)
        ranks = generate.infer_tensor_parallel_size * self.stages
        self._counts = EngineCounts(self.llm.llm_engine, ranks)
        self.llm.llm_engine.step = _ticking(self.llm.llm_engine.step, self._counts)
        runner = self._worker.model_runner
        draft, self._draft_bytes = loaded_draft(self._worker, generate)
        self._leftovers = Leftovers.of(runner.get_model(), platform, draft)
        # All ranks of a replica route the same tokens: one of them keeps the routes.
        keeps = model.routes is not None and get_tp_group().is_first_rank
        self._routes = EngineRoutes(runner, model.routes) if keeps and model.routes else None
        self.awake: set[EngineTag] = {"weights", "kv_cache"}
        weights = EngineShards(self._worker).nbytes() + self._draft_bytes
        self._sizes: dict[EngineTag, int] = {"weights": weights, "kv_cache": self._kv_cache_bytes()}
        self._rounds: Rounds | None = None
        self._pages = dict(self._sizes)
        """Bytes of each tag on the device: its size, or a larger measurement at wake-up."""

    def offload(self) -> None:
        """Take weights and KV cache off the device; their contents are lost.

        The engine also forgets the prefixes in its cache. vLLM sleeps only as a whole; with only
        the weights allocated, it reports that it sleeps already. So the cache is then allocated
        first; without room for it the weights stay.
        """
        if self.awake == {"weights"}:
            with suppress(torch.OutOfMemoryError):
                self.onload("kv_cache")
        if self.awake == {"weights", "kv_cache"}:
            # The allocator of vllm-ascend 0.23 unmaps memory that the device may still be using.
            finish_device_work(self.device_type)
            self.llm.sleep(level=2)
            self.awake.clear()

    def onload(self, tag: EngineTag) -> None:
        """Allocate the weights or the KV cache: see `RolloutEngine`."""
        # The engine has its own allocator, which cannot use blocks cached by torch.
        give_back_unused(self.device_type)
        before = free_bytes(self.device_type)
        if before is not None and before < self._pages[tag]:
            # The allocator of vllm-ascend would end the process.
            raise torch.OutOfMemoryError(
                f"out of memory: {tag} of the engine need {mib_text(self._pages[tag])}; the device "
                f"has {mib_text(before)} free"
            )
        self.llm.wake_up(tags=[tag])
        self.awake.add(tag)
        if tag == "weights":
            self._leftovers.restore()
        if before is not None:
            taken = before - (free_bytes(self.device_type) or 0)
            self._pages[tag] = max(self._pages[tag], taken)

    def nbytes(self, tag: EngineTag) -> int:
        """Return the bytes of the weights or the KV cache on the device when allocated."""
        return self._sizes[tag]

    def device_bytes(self, tag: EngineTag) -> int:
        """Return the bytes of the weights or the KV cache on the device now.

        On CPU these are the bytes of the storages; a model that drafts is allocated with the
        weights. Elsewhere memory is unmapped under the storages while the engine sleeps, so the
        engine's state counts.
        """
        if self.device_type == "cpu":
            drafts = self._draft_bytes if tag == "weights" and tag in self.awake else 0
            return int(self._worker.resident_bytes()[tag]) + drafts
        return self._sizes[tag] if tag in self.awake else 0

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

    def weight_sink(self, kept: str | None = None) -> EngineShards | WholeTensors:
        """Return the destination of this rank's shards, or of whole tensors, for one load.

        Weights whose names start with `kept` (a vision tower's) stay unchanged.
        """
        if self._pictures is not None:
            self._pictures.forget(self.llm)
        if self._whole is None:
            assert kept is None, "only a vision tower is kept, which has no sharding"
            return EngineShards(self._worker)
        return WholeTensors(self._worker, self._whole, kept)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> Responses:
        """Complete each prompt once, in order: see `RolloutEngine`."""
        if not prompts:
            return Responses.of([], [], [])
        self._must_be_awake()
        # All ranks of a replica have the same first seed; no other call uses it.
        state = self.seed if sampling.is_seeded else seeds[0]
        with _own_random_state(state), PROGRESS.steady():
            outputs = self.llm.generate(
                self._prompts(prompts, images),
                [SamplingParams(**vllm_parameters(sampling, seed)) for seed in seeds],
                use_tqdm=False,
            )
        for output, prompt in zip(outputs, prompts if images else (), strict=False):
            require_same(output.prompt_token_ids, prompt)
        answers = [output.outputs[0] for output in outputs]
        if self._routes is not None:
            for output, prompt in zip(outputs, prompts, strict=True):
                self._routes.end(output.request_id, [*prompt, *output.outputs[0].token_ids])
        whole = sum(each.finish_reason in ("stop", "length") for each in answers)
        if whole < len(prompts) or not all(each.token_ids for each in answers):
            raise RuntimeError(f"vLLM completed {whole} of {len(prompts)} prompts")
        return Responses.of(
            token_ids=[answer.token_ids for answer in answers],
            logprobs=[token_logprobs(answer) for answer in answers],
            finished=[answer.finish_reason == "stop" for answer in answers],
        )

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[float]:
        """Return the log-prob of the last token of each row: see `RolloutEngine`.

        A prompt's own log-probs would be at temperature 1: vLLM scales sampled tokens only.
        """
        self._must_be_awake()
        params = [
            SamplingParams(
                temperature=temperature,
                max_tokens=1,
                logprob_token_ids=[row[-1]],
                detokenize=False,
            )
            for row in rows
        ]
        with _own_random_state(self.seed), PROGRESS.steady():
            outputs = self.llm.generate(
                [TokensPrompt(prompt_token_ids=list(row[:-1])) for row in rows],
                params,
                use_tqdm=False,
            )
        return [
            output.outputs[0].logprobs[0][row[-1]].logprob
            for row, output in zip(rows, outputs, strict=True)
        ]

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests: see `RolloutEngine`."""
        self._must_be_awake()
        pictures = None if self._pictures is None else self._pictures.request
        ended = None
        if self._routes is not None:
            # Names of requests are reused.
            self._routes.forget()
            ended = self._routes.end
        self._rounds = Rounds(self.llm.llm_engine, sampling, self.stages, pictures, ended)
        self._rounds.add(requests)

    def advance(
        self, steps: int, more: Sequence[Request] = (), until: int | None = None
    ) -> list[int]:
        """Run steps of the engine: see `RolloutEngine`."""
        assert self._rounds is not None, "generation has started"
        self._must_be_awake()
        self._rounds.add(more)
        with _own_random_state(self._rounds.next_seed()), PROGRESS.steady():
            return self._rounds.advance(steps, until)

    def answers(self, places: Sequence[int]) -> Responses:
        """Return the responses of completed requests: see `RolloutEngine`."""
        assert self._rounds is not None, "generation has started"
        return self._rounds.answers(places)

    def take_back(self) -> Responses:
        """Return the sampled tokens: see `RolloutEngine`."""
        assert self._rounds is not None, "generation has started"
        rounds, self._rounds = self._rounds, None
        with _own_random_state(rounds.next_seed()), PROGRESS.steady():
            return rounds.take_back()

    def forget(self) -> None:
        """Invalidate the KV cache: see `RolloutEngine`."""
        if self._routes is not None:
            self._routes.forget()
        if self._rounds is not None or not self.llm.reset_prefix_cache():
            raise RuntimeError("new weights arrived while the engine has unfinished requests")

    def take_routes(self) -> dict[int, RoutePart]:
        """Return the routes of requests that ended: see `RolloutEngine`."""
        return {} if self._routes is None else self._routes.take()

    def flush_counts(self) -> dict[str, float]:
        """Return the number of steps and preemptions: see `RolloutEngine`."""
        return self._counts.flush()

    def _prompts(
        self, prompts: Sequence[Sequence[int]], images: Sequence[Sequence[PlacedImage]]
    ) -> list[TokensPrompt]:
        if not images:
            return [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        assert self._pictures is not None, "validated: the model reads pictures"
        return [self._pictures.prompt(*each) for each in zip(prompts, images, strict=True)]

    def _must_be_awake(self) -> None:
        if self.awake != {"weights", "kv_cache"}:
            raise RuntimeError(
                f"the engine received a request while only {sorted(self.awake)} are awake"
            )


def allocate_stage_inputs(runner: Any) -> None:
    """Allocate the receive buffers of a later pipeline stage, unless vLLM has done so.

    vLLM does it in its trial run, which it skips on a CPU without compilation.
    """
    if runner.intermediate_tensors is None and not get_pp_group().is_first_rank:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens,
            dtype=runner.model_config.dtype,
            device=runner.device,
        )


def _ticking(step: Callable[[], Any], counts: EngineCounts) -> Callable[[], Any]:
    """Return a function that counts progress with each step of the engine."""

    def ticking_step() -> Any:
        tick()
        counts.count_step()
        with span("engine step"):
            return step()

    return ticking_step


def _prepare(model: EngineModel, platform: Platform) -> None:
    """Let vLLM find the model's class and capture its steps."""
    register_models(model.folder)
    capture_without_compiling(platform)


@contextmanager
def _own_random_state(seed: int) -> Iterator[None]:
    """Seed the global random generators for the body, then restore their states.

    The engine reseeds the global generators when it starts, and uses them even if every request has
    its own seed.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    accelerator = torch.accelerator.current_accelerator()
    devices = [] if accelerator is None else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(devices, device_type=accelerator.type if accelerator else "cpu"):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
