"""What the tests of the engine's shards call in a prepared process; see forked_workers.run."""

import gc
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rollout_probe import sleeping_engine, storage_bytes
from shards_messages import Answer, Case, EngineMemory, Filled, Loaded, Shapes
from torch import Tensor
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.v1.core.kv_cache_utils import (
    _max_memory_usage_bytes_from_groups,
    _pool_bytes_per_block,
)
from weight_files import load_backwards, load_one_by_one, rollout_table

from mindrl.layouts.layout import RolloutLayout
from mindrl.models.placement import ShardingTable
from mindrl.platform.device import PLATFORMS
from mindrl.rollout.vllm.engine import VllmEngine, allocate_stage_inputs
from mindrl.rollout.vllm.model_classes import register_models

Prompts = Sequence[Sequence[int]]
ORDINARY = ("ordinary", "ordinary later")


def fill_engines(
    cases: Sequence[Case], prompts: Prompts, ordinary: Collection[str] = ORDINARY
) -> list[Filled]:
    """Fill an engine of each case, all of one tensor-parallel size, and compare in this process.

    `ordinary` names the engines of a case that load a folder themselves.
    """
    return [_fill_engine(case, prompts, ordinary) for case in cases]


def ordinary_engines(cases: Sequence[Case], prompts: Prompts) -> list[Loaded]:
    """Ask engines of each case that load its folders themselves."""
    return [
        Loaded(
            answers=_of_ordinary(case, prompts, ORDINARY)[0], table=_table_shapes(table_of(case))
        )
        for case in cases
    ]


def misuse(case: Case) -> tuple[float, list[str]]:
    """Leave ones in the embedding, then use the next load wrongly in three ways.

    Returns the largest element of the embedding as the next load opens it, and what was said.
    """
    engine = engine_of(case)
    engine.onload("weights")
    first = next(iter(engine.weight_sink().shapes()))
    engine.weight_sink().open(first).fill_(1.0)
    shards = engine.weight_sink()
    largest = shards.open(first).max().item()
    shards.close(first)
    said = []
    for wrong in (lambda: shards.close(first), lambda: shards.open(first), shards.finish):
        try:
            wrong()
        except AssertionError as error:
            said.append(str(error))
    return largest, said


def shapes_of(cases: Sequence[Case]) -> list[Shapes]:
    """Return what engines of one tensor-parallel size expect, asleep since their start."""
    return [
        Shapes(
            expected=engine_of(case).weight_sink().shapes(),
            table=_table_shapes(table_of(case)),
            queues=_shared_queues(),
        )
        for case in cases
    ]


def _shared_queues() -> list[str]:
    """Return the names of the memory that ranks share, once the first one has removed them."""
    dist.barrier()
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return [line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/psm_" in line]


def engine_of(case: Case) -> VllmEngine:
    """Start the engine of a case, and put it to sleep."""
    _freeze()
    tp = case.tensor_parallel_size
    return sleeping_engine(
        case.folder,
        infer_tensor_parallel_size=tp,
        infer_pipeline_parallel_size=case.pipeline_parallel_size,
        infer_expert_parallel_size=tp if case.expert_parallel else 1,
        dtype=case.dtype,
    )


def table_of(case: Case) -> ShardingTable:
    """Return what this rank holds."""
    tp, pp = case.tensor_parallel_size, case.pipeline_parallel_size
    dp, ep = dist.get_world_size() // (tp * pp), tp if case.expert_parallel else 1
    return rollout_table(case.folder, RolloutLayout(tp=tp, pp=pp, dp=dp, ep=ep))


def _of_ordinary(
    case: Case, prompts: Prompts, names: Collection[str]
) -> tuple[dict[str, list[Answer]], dict[str, EngineMemory]]:
    """Return the answers of ordinary engines, and the memory of each."""
    answers, memory = {}, {}
    for name in names:
        engine = _ordinary_engine(case, case.later_folder if "later" in name else case.folder)
        answers[name], memory[name] = _ask(engine, prompts), _memory(engine)
        del engine
    return answers, memory


def _fill_engine(case: Case, prompts: Prompts, ordinary: Collection[str]) -> Filled:
    answers, memory = _of_ordinary(case, prompts, ordinary)
    table = table_of(case)
    engine = engine_of(case)
    shapes = engine.weight_sink().shapes()
    engine.onload("weights")
    before = _addresses(engine.llm)
    shards = engine.weight_sink()
    load_one_by_one(shards, case.folder, table)
    memory["loaded"], after = _memory(engine.llm), _addresses(engine.llm)
    engine.onload("kv_cache")
    answers["filled"] = _ask(engine.llm, prompts)
    load_backwards(engine.weight_sink(), case.later_folder, table)
    engine.llm.reset_prefix_cache()
    answers["filled later"] = _ask(engine.llm, prompts)
    engine.offload()
    memory["asleep"] = _memory(engine.llm)
    engine.onload("weights")
    load_backwards(engine.weight_sink(), case.folder, table)
    engine.onload("kv_cache")
    answers["filled after a sleep"] = _ask(engine.llm, prompts)
    sequence_bytes, spare_bytes = _sequence_bytes(engine.llm)
    return Filled(
        shapes=Shapes(expected=shapes, table=_table_shapes(table), queues=_shared_queues()),
        answers=answers,
        memory=memory,
        sequence_bytes=sequence_bytes,
        smallest_cache_bytes=sequence_bytes + spare_bytes,
        cache_bytes=engine.device_bytes("kv_cache"),
        addresses_kept=before == after,
    )


def _ordinary_engine(case: Case, folder: str) -> LLM:
    """Start an engine that loads the folder itself."""
    _freeze()
    register_models(folder)
    llm = LLM(
        model=folder,
        load_format="auto",
        # Of gated delta nets the engine keeps no states of prefixes.
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        distributed_executor_backend="external_launcher",
        tensor_parallel_size=case.tensor_parallel_size,
        pipeline_parallel_size=case.pipeline_parallel_size,
        enable_expert_parallel=case.expert_parallel,
        dtype=case.dtype,
        seed=3,
        max_num_seqs=8,
        max_model_len=64,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=4 << 20,
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
        **PLATFORMS["cpu"].engine_options,
    )
    if case.pipeline_parallel_size > 1:
        allocate_stage_inputs(llm.llm_engine.model_executor.driver_worker.worker.model_runner)
    return llm


def _freeze() -> None:
    """Exclude all present objects from garbage collection.

    vLLM includes them again when an engine ends. Each full collection, of which the start of an
    engine has three, would then take 0.6 s.
    """
    gc.freeze()


def _ask(llm: LLM, prompts: Prompts) -> list[Answer]:
    greedy = SamplingParams(
        temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0, detokenize=False
    )
    questions = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
    answers = []
    for output in llm.generate(questions, greedy, use_tqdm=False):
        tokens, logprobs = tuple(output.outputs[0].token_ids), output.outputs[0].logprobs
        chosen = zip(tokens, logprobs, strict=True)
        answers.append((tokens, tuple(entry[token].logprob for token, entry in chosen)))
    return answers


def _model(llm: LLM) -> torch.nn.Module:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()


def _sequence_bytes(llm: LLM) -> tuple[int, int]:
    """Return the bytes of the longest sequence, and those of a block."""
    core = llm.llm_engine.engine_core.engine_core
    groups, config = core.scheduler.kv_cache_config.kv_cache_groups, llm.llm_engine.vllm_config
    sequence = _max_memory_usage_bytes_from_groups(config, groups)
    return sequence, _pool_bytes_per_block(config, groups)


def _addresses(llm: LLM) -> dict[str, int]:
    parameters = _model(llm).named_parameters()
    return {name: parameter.data_ptr() for name, parameter in parameters if parameter.numel()}


def _memory(llm: LLM) -> EngineMemory:
    gc.unfreeze()  # the engine has frozen all that was there when it was ready
    gc.collect()
    # `isinstance` reads `__class__`, for which a lazy module of openai imports itself.
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    _freeze()
    return EngineMemory(
        parameters=storage_bytes(_model(llm).parameters()),
        packed_layers=sum(
            getattr(module, "cpu_linear", None) is not None for module in _model(llm).modules()
        ),
        tensors=storage_bytes(tensor for tensor in tensors if tensor.device.type == "cpu"),
    )


def _table_shapes(table: ShardingTable) -> dict[str, tuple[int, ...]]:
    return {name: local.shape for name, local in table.items()}
