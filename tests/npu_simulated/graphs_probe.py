"""Functions of graphs that tests call in processes with simulated NPUs."""

from importlib import import_module
from types import SimpleNamespace

import torch
from engine_messages import EngineCase, GraphLife, Tokens
from engine_probe import GREEDY, SAMPLED, layout_of, start, taken_bytes
from weight_files import load_one_by_one, rollout_table

from mindrl.platform.device import PLATFORMS, configure_megatron


def life(case: EngineCase, folders: list[str], prompts: list[Tokens]) -> GraphLife:
    """Let an engine with graphs sleep, wake and answer with the weights of each folder."""
    counts = {"captured": 0, "replayed": 0}
    begin, replay = torch.npu.NPUGraph.capture_begin, torch.npu.NPUGraph.replay

    def counted(graph: torch.npu.NPUGraph, *given: object, **words: object) -> None:
        counts["captured"] += 1
        begin(graph, *given, **words)

    def counted_replay(graph: torch.npu.NPUGraph) -> None:
        counts["replayed"] += 1
        replay(graph)

    torch.npu.NPUGraph.capture_begin, torch.npu.NPUGraph.replay = counted, counted_replay
    before, found = taken_bytes(), GraphLife()
    engine, table = start(case), rollout_table(case.folder, layout_of(case))
    found.captured = counts["captured"]
    for folder in folders:
        engine.offload()
        found.asleep = found.asleep or taken_bytes() - before
        engine.onload("weights")
        load_one_by_one(engine.weight_sink(), folder, table)
        engine.onload("kv_cache")
        counts["replayed"] = 0
        found.greedy.append(engine.generate(prompts, GREEDY, list(range(len(prompts)))))
        found.replayed.append(counts["replayed"])
        found.sampled.append(engine.generate(prompts, SAMPLED, list(range(len(prompts)))))
    assert counts["captured"] == found.captured, "a step captured a graph"
    return found


def beside_mindspeed(case: EngineCase, folders: list[str], prompts: list[Tokens]) -> GraphLife:
    """Tell MindSpeed a layout, which replaces torch.compile, then let an engine live."""
    configure_megatron(PLATFORMS["npu"], {"tensor_model_parallel_size": case.tp})
    return life(case, folders, prompts)


def prepares_graphs_uncompiled() -> tuple[bool, bool]:
    """Return whether vllm-ascend prepares graphs without compilation, and with mindrl's patch."""
    import_module("vllm_ascend.worker.worker")
    runner = import_module("vllm_ascend.worker.model_runner_v1").NPUModelRunner
    mode = import_module("vllm.config").CUDAGraphMode.FULL_DECODE_ONLY
    engine = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=mode, mode=0),
        model_config=SimpleNamespace(enforce_eager=False),
    )
    plain = runner._use_aclgraph(engine)
    import_module("mindrl.platform.patches.npu_graphs").install()
    return plain, runner._use_aclgraph(engine)
