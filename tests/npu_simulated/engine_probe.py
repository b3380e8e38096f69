"""Functions that tests of an engine on simulated devices call in their processes."""

from contextlib import ExitStack
from importlib import import_module

import torch
import torch.distributed as dist
from engine_messages import EngineCase, EngineLife, Tokens
from transfer_probe import Shards, prepared, shards_of
from weight_files import load_backwards, load_one_by_one, rollout_table

from mindrl.batch.rollouts import Responses
from mindrl.batch.route_keys import RoutePart
from mindrl.checkpoint.files import open_tensors
from mindrl.config.generate import GenerateConfig, SamplingConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS, configure_megatron
from mindrl.platform.device_memory import device_account
from mindrl.rollout.engine import Sampling
from mindrl.rollout.vllm.engine import EngineModel, VllmEngine
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.sharding import megatron_sharding

GREEDY = Sampling(section=SamplingConfig(max_tokens=12), stop_token_ids=(), is_greedy=True)
SAMPLED = Sampling(section=SamplingConfig(max_tokens=12), stop_token_ids=())


def start(case: EngineCase) -> VllmEngine:
    """Start an engine as a worker does."""
    generate = GenerateConfig(
        dtype="float32",
        max_num_seqs=8,
        max_model_len=64,
        max_num_batched_tokens=256,
        infer_tensor_parallel_size=case.tp,
        infer_expert_parallel_size=case.tp if case.whole_experts else 1,
        enforce_eager=not case.graphs,
    )
    moe = read_description(case.folder).moe if case.routes else None
    return VllmEngine(
        EngineModel(folder=case.folder, routes=moe),
        generate,
        PLATFORMS["npu"],
        kv_cache_bytes=8 << 20,
        seed=3,
        timeout_seconds=120,
    )


def layout_of(case: EngineCase) -> RolloutLayout:
    """Lay the replicas of an engine over all ranks."""
    replicas, ep = dist.get_world_size() // case.tp, case.tp if case.whole_experts else 1
    return RolloutLayout(tp=case.tp, dp=replicas, ep=ep)


def life(case: EngineCase, prompts: list[Tokens]) -> EngineLife:
    """Put an engine to sleep and wake it three times, with weights loaded in two orders."""
    found, seeds = EngineLife(), list(range(len(prompts)))
    torch.npu.manual_seed(77)
    states = {_random_state()}
    before = taken_bytes()
    engine, table = start(case), rollout_table(case.folder, layout_of(case))
    states.add(_random_state())
    found.sizes = {tag: engine.nbytes(tag) for tag in ("weights", "kv_cache")}
    found.taken.append({"started": taken_bytes() - before})
    for load in (load_one_by_one, load_backwards, load_one_by_one):
        taken: dict[str, int] = {}
        found.taken.append(taken)
        filled = _first_weights(engine)
        engine.offload()
        taken["asleep"] = taken_bytes() - before
        engine.onload("weights")
        taken["weights"] = taken_bytes() - before
        found.kept.append(torch.equal(_first_weights(engine), filled))
        sink, addresses = engine.weight_sink(), _addresses(engine)
        expected = {name: entry.shape for name, entry in table.items()}
        found.shapes_agree = expected == sink.shapes()
        load(sink, case.folder, table)
        found.moved += [
            name for name, at in _addresses(engine).items() if addresses.get(name) != at
        ]
        engine.onload("kv_cache")
        taken["awake"] = taken_bytes() - before
        found.greedy.append(engine.generate(prompts, GREEDY, seeds))
        found.sampled.append(engine.generate(prompts, SAMPLED, seeds))
        states.add(_random_state())
    found.random_states = len(states)
    firsts = [int(tokens[0]) for tokens, _ in found.sampled[-1].each()]
    rows = [[*prompt, first] for prompt, first in zip(prompts, firsts, strict=True)]
    found.read = engine.next_logprobs(rows, 1.0)
    return found


def resharded(case: EngineCase, layout: TrainLayout, prompts: list[Tokens]) -> list[Responses]:
    """Fill an engine twice from tensors as Megatron has them in a layout; returns its answers."""
    model, rank = read_description(case.folder, to_plan=True), dist.get_rank()
    source = megatron_sharding(model, layout, dtype="float32")
    target = vllm_sharding(model, layout_of(case), dtype="float32")
    reshard = prepared(source, target, 256 << 10, "engine")
    with ExitStack() as stack:
        files = open_tensors(case.folder, stack, framework="pt")
        whole = {name: file.get_tensor(name) for name, file in files.items()}
    ours = shards_of(source.table(rank), whole, torch.float32)
    engine, answers = start(case), []
    for _ in range(2):
        engine.offload()
        engine.onload("weights")
        sink = engine.weight_sink()
        given = Shards({name: tensor.to("npu") for name, tensor in ours.items()})
        reshard.run(given, sink, verify=True)
        sink.finish()
        engine.onload("kv_cache")
        answers.append(engine.generate(prompts, GREEDY, list(range(len(prompts)))))
    return answers


def routed(case: EngineCase, prompts: list[Tokens]) -> tuple[Responses, dict[int, RoutePart]]:
    """Return answers, and the experts of their tokens as far as this rank keeps them."""
    engine = start(case)
    engine.offload()
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), case.folder, rollout_table(case.folder, layout_of(case)))
    engine.onload("kv_cache")
    return engine.generate(prompts, SAMPLED, list(range(len(prompts)))), engine.take_routes()


def crowded(case: EngineCase, prompts: list[Tokens]) -> tuple[int, str, Responses]:
    """Let another have the device while an engine sleeps that was half awake.

    Returns what its sleep left on the device, what is said, and an answer.
    """
    before = taken_bytes()
    engine, table = start(case), rollout_table(case.folder, layout_of(case))
    engine.offload()
    engine.onload("weights")
    engine.offload()
    left = taken_bytes() - before
    free = torch.npu.mem_get_info()[0]
    other = torch.empty(free - (2 << 20), dtype=torch.uint8, device="npu")
    said = ""
    try:
        engine.onload("weights")
    except torch.OutOfMemoryError as error:
        said = str(error)
    del other
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), case.folder, table)
    engine.onload("kv_cache")
    return left, said, engine.generate(prompts, GREEDY, list(range(len(prompts))))


def beside_mindspeed(case: EngineCase, prompts: list[Tokens]) -> EngineLife:
    """Tell MindSpeed a layout, then let an engine live in the same process."""
    configure_megatron(PLATFORMS["npu"], {"tensor_model_parallel_size": case.tp})
    return life(case, prompts)


def beside_the_dummy(case: EngineCase) -> str:
    """Tell MindSpeed a layout, keep its dummies, and return what building an engine says."""
    patch = import_module("mindrl.platform.patches.npu_megatron")
    patch.repatch({"tensor_model_parallel_size": case.tp})
    try:
        start(case)
    except ModuleNotFoundError as error:
        return str(error)
    return ""


def taken_bytes() -> int:
    """Return the bytes of the device that are taken."""
    torch.npu.synchronize()
    account = device_account("npu")
    assert account is not None
    return account.taken


def _random_state() -> bytes:
    state: torch.Tensor = torch.npu.get_rng_state()
    return bytes(state.tolist())


def _first_weights(engine: VllmEngine) -> torch.Tensor:
    model = engine._worker.model_runner.get_model()
    return next(iter(model.parameters())).detach().to("cpu", copy=True)


def _addresses(engine: VllmEngine) -> dict[str, int]:
    model = engine._worker.model_runner.get_model()
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
