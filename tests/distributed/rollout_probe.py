"""What the tests of the rollout side call in a prepared process; see forked_workers.run."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rollout_messages import DeviceBytes, Life, Question
from torch import Tensor
from torch._dynamo.utils import counters
from weight_files import load_one_by_one, rollout_table

from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.any_family import read_any_description
from mindrl.config.generate import GenerateConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.platform.device import PLATFORMS
from mindrl.platform.host_pages import bytes_in_memory
from mindrl.rollout.engine import Request
from mindrl.rollout.planning import whole_tensors
from mindrl.rollout.vllm.engine import EngineModel, VllmEngine
from mindrl.training.megatron.parallel import initialise_model_parallel

ONE_RANK = RolloutLayout()


def life_of_an_engine(folder: str, later_folder: str, questions: list[Question]) -> Life:
    """Start an engine, give it weights, ask, put it to sleep, and do it again with others."""
    # As in a worker: Megatron's groups are there before the engine makes its own.
    default = set(groups())
    initialise_model_parallel(TrainLayout(), seed=1, timeout_minutes=7)
    megatron = set(groups()) - default
    before = random_states()
    engine = sleeping_engine(folder, max_model_len=160, max_num_batched_tokens=160)
    seeds = seeds_of_steps(engine)
    own = set(groups()) - default - megatron
    seen = {"started": device_bytes(engine)}
    engine.onload("weights")
    seen["weights allocated"] = device_bytes(engine)
    load_one_by_one(engine.weight_sink(), folder, rollout_table(folder, ONE_RANK))
    engine.onload("kv_cache")
    seen["awake"] = device_bytes(engine)
    answers = [ask(engine, question) for question in questions]
    seen["used"] = device_bytes(engine)
    greedy, sampled, *unseeded = (questions[place] for place in (0, 4, -3, -2, -1))
    rounds = [
        in_rounds(engine, greedy, steps=5),
        in_rounds(engine, greedy, steps=5, breaks=True),
        in_rounds(engine, sampled, steps=5),
        in_rounds(engine, sampled, steps=5, late=3),
        *(in_rounds(engine, question, steps=12, late=5) for question in unseeded),
    ]
    engine.offload()
    seen["asleep"] = device_bytes(engine)
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), later_folder, rollout_table(folder, ONE_RANK))
    engine.onload("kv_cache")
    later_answers = [ask(engine, question) for question in questions]
    refused = {"given up": refusal(engine, questions[0], gives_up=True)}
    answer_behind = ask(engine, questions[0])
    engine.offload()
    refused["asleep"] = refusal(engine, questions[0])
    engine.onload("weights")
    refused["half awake"] = refusal(engine, questions[0])
    return Life(
        answers=answers,
        later_answers=later_answers,
        device_bytes=seen,
        random_state_kept=random_states() == before,
        steps_with_own_seeds=torch.initial_seed() not in seeds,
        megatron_timeouts={group.group_desc: seconds(group) for group in megatron},
        engine_timeouts={seconds(group) for group in own},
        refused=refused,
        answer_behind=answer_behind,
        in_rounds=rounds,
    )


def captured_answers(folder: str, later: str, question: Question) -> tuple[int, list[Responses]]:
    """Ask a compiled engine with one set of weights and, after a sleep, with another.

    Returns the number of compiled graphs too.
    """
    engine = sleeping_engine(folder, enforce_eager=False)
    answers = []
    for weights in (folder, later):
        engine.onload("weights")
        load_one_by_one(engine.weight_sink(), weights, rollout_table(folder, ONE_RANK))
        engine.onload("kv_cache")
        answers.append(ask(engine, question))
        engine.offload()
    return int(counters["stats"]["unique_graphs"]), answers


def groups() -> list[dist.ProcessGroup]:
    return list(dist.distributed_c10d._world.pg_map)


def seconds(group: dist.ProcessGroup) -> float:
    """Return how long a collective of a group may last."""
    backend = group._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def full_cache(folder: str, question: Question) -> tuple[list[Responses], list[float]]:
    """Ask an engine with room for four blocks of 128 tokens: one by one, then all together.

    Returns both answers to all prompts, and how often each took a sequence back.
    """
    engine = sleeping_engine(
        folder, kv_cache_bytes=5 * 128 << 10, max_model_len=160, max_num_batched_tokens=160
    )
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), folder, rollout_table(folder, ONE_RANK))
    engine.onload("kv_cache")
    rows = range(len(question.prompts))
    alone = Responses.joined([ask(engine, question.only(row)) for row in rows])
    counts = [engine.flush_counts()["throughput/preemptions"]]
    together = ask(engine, question)
    counts += [
        engine.flush_counts()["throughput/preemptions"],
        engine.flush_counts()["throughput/preemptions"],
    ]
    return [alone, together], counts


def sleeping_engine(folder: str, *, kv_cache_bytes: int = 4 << 20, **changes: Any) -> VllmEngine:
    """Start an engine and put it to sleep, as a worker does.

    Args:
        folder: Of the model.
        kv_cache_bytes: As for `VllmEngine`.
        changes: Keys of `GenerateConfig`.
    """
    model = read_any_description(folder, to_plan=True)
    keys = {
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_model_len": 64,
        "max_num_batched_tokens": 128,
        "enable_prefix_caching": not (model.other and model.other.delta),
    }
    engine = VllmEngine(
        EngineModel(folder=folder, whole=whole_tensors(model)),
        GenerateConfig(**{**keys, **changes}),
        PLATFORMS["cpu"],
        kv_cache_bytes=kv_cache_bytes,
        seed=3,
        timeout_seconds=540,
    )
    engine.offload()
    return engine


def ask(engine: VllmEngine, question: Question) -> Responses:
    return engine.generate(question.prompts, question.sampling, question.seeds)


def in_rounds(
    engine: VllmEngine, question: Question, *, steps: int, breaks: bool = False, late: int = 0
) -> Responses:
    """Ask in rounds of so many engine steps; a break takes back all that is not whole.

    So many requests come `late`, in the second round.
    """
    longest = question.sampling.section.max_tokens
    tokens: list[list[int]] = [[] for _ in question.prompts]
    logprobs: list[list[float]] = [[] for _ in question.prompts]
    finished = [False] * len(tokens)
    while left := [
        row for row, each in enumerate(tokens) if len(each) < longest and not finished[row]
    ]:
        asked = [
            Request(
                token_ids=(*question.prompts[row], *tokens[row]),
                drawn=len(tokens[row]),
                seed=question.seeds[row],
            )
            for row in left
        ]
        in_time = len(asked) - late
        engine.begin(asked[:in_time], question.sampling)
        whole = engine.advance(steps)
        if late:
            whole += engine.advance(steps, asked[in_time:])
        while not breaks and len(whole) < len(left):
            whole += engine.advance(steps)
        early = engine.answers(whole)
        found = engine.take_back()
        each = found.each()
        for place, (ids_N, logprobs_N) in zip(whole, early.each(), strict=True):
            assert torch.equal(ids_N, each[place][0])
            assert torch.equal(logprobs_N, each[place][1])
        assert torch.equal(early.finished_B, found.finished_B[whole])
        parts = found.lengths_B.tolist()
        for place, row in enumerate(left):
            tokens[row] += found.token_ids_N.split(parts)[place].tolist()
            logprobs[row] += found.logprobs_N.split(parts)[place].tolist()
            finished[row] = bool(found.finished_B[place])
    return Responses.of(tokens, logprobs, finished)


def refusal(engine: VllmEngine, question: Question, *, gives_up: bool = False) -> str:
    """Return what the engine raises when asked; it may give up the first prompt on the way."""
    inner = engine.llm.llm_engine
    step = inner.step

    def giving_up() -> Any:
        if gives_up:
            inner.abort_request([*inner.output_processor.request_states][:1], internal=True)
        inner.step = step
        return step()

    inner.step = giving_up
    try:
        ask(engine, question)
    except RuntimeError as error:
        return str(error)
    finally:
        inner.step = step
    return ""


def random_states() -> tuple[str, str, list[int]]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the engine's own
    return str(python), str(numpy), torch.get_rng_state().tolist()


def seeds_of_steps(engine: VllmEngine) -> set[int]:
    """Return a set that receives the seed of the global generator in each step from now on."""
    inner, seeds = engine.llm.llm_engine, set[int]()
    step = inner.step

    def noting() -> Any:
        seeds.add(torch.initial_seed())
        return step()

    inner.step = noting
    return seeds


def device_bytes(engine: VllmEngine) -> DeviceBytes:
    runner = engine.llm.llm_engine.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    caches = [
        tensor
        for cache in runner.kv_caches
        for tensor in (cache if isinstance(cache, list | tuple) else [cache])
    ]
    return DeviceBytes(
        weights=storage_bytes(model.parameters()),
        packed_layers=sum(
            getattr(module, "cpu_linear", None) is not None for module in model.modules()
        ),
        kv_cache=engine.device_bytes("kv_cache"),
        kv_pages=sum(
            bytes_in_memory(address, nbytes) for address, nbytes in storages(caches).items()
        ),
    )


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Count each storage once, whatever looks into it."""
    return sum(storages(tensors).values())


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage, by its address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}
