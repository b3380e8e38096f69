"""Options of graphs: where they are refused, and what the engine gets."""

from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig

from mindrl.platform.device import PLATFORMS, DeviceKind
from mindrl.preflight.graph_checks import graph_findings, graph_findings_on, graph_warnings
from mindrl.preflight.shipped import planned_description
from mindrl.rollout.vllm.options import command_of, rollout_options

AT = "generate_config"
MODE = {f"{AT}.cudagraph_mode": "FULL_DECODE_ONLY"}
SIZES = {f"{AT}.cudagraph_capture_sizes": [1, 8, 64]}
NONE = "where the engine captures no graphs"
MOST = f"{AT}.max_num_batched_tokens=32, tokens of a step"
ON = {f"{AT}.enforce_eager": False}
COMPILED = "torch.compile, which does nothing in a process with a trainer on npu devices"
STEP = "tokens of a decode step"
WITH_DRAFTS = f"{AT}.max_num_seqs times one more than num_speculative_tokens"
WITHOUT = "without graphs"
STREAMS = "the 1800 streams of a device"
MANY = {
    f"{AT}.cudagraph_capture_sizes": [*range(1, 1001)],
    f"{AT}.max_num_seqs": 1000,
}
SPELLED = ",".join(map(str, range(1, 1001)))
MODELS = Path(__file__).parents[3] / "configs/models"
DRAFTS = {f"{AT}.speculative_config.method": "ngram"}


@pytest.mark.parametrize(
    ("kind", "keys", "found"),
    [
        ("npu", ON | MODE | SIZES, []),
        ("gpu", MODE | SIZES, []),
        ("npu", {}, []),
        (
            "npu",
            ON | {f"{AT}.cudagraph_mode": "PIECEWISE"},
            [
                f"{AT}.cudagraph_mode=PIECEWISE needs {COMPILED}",
            ],
        ),
        (
            "npu",
            ON | SIZES | {f"{AT}.max_num_seqs": 32},
            [
                f"{AT}.cudagraph_capture_sizes=1,8,64 must be at most {AT}.max_num_seqs=32, {STEP}",
            ],
        ),
        (
            "npu",
            ON | SIZES | {f"{AT}.max_num_seqs": 15} | DRAFTS,
            [
                f"{AT}.cudagraph_capture_sizes=1,8,64 must be at most {WITH_DRAFTS}=60, {STEP}",
            ],
        ),
        ("npu", ON | SIZES | {f"{AT}.max_num_seqs": 16} | DRAFTS, []),
        # Prompts have steps of any size.
        ("gpu", SIZES | {f"{AT}.max_num_seqs": 32}, []),
        (
            "npu",
            MODE,
            [f"{AT}.cudagraph_mode=FULL_DECODE_ONLY needs graphs: set {AT}.enforce_eager=false"],
        ),
        (
            "cpu",
            ON | MODE,
            [f"{AT}.cudagraph_mode=FULL_DECODE_ONLY has no effect on cpu devices, {NONE}"],
        ),
        (
            "gpu",
            {f"{AT}.cudagraph_capture_sizes": [8, 1, 8]},
            [f"{AT}.cudagraph_capture_sizes=8,1,8 must be one or more rising sizes"],
        ),
        (
            "gpu",
            SIZES | {f"{AT}.max_num_batched_tokens": 32, f"{AT}.max_model_len": 32},
            [f"{AT}.cudagraph_capture_sizes=1,8,64 must be at most {MOST}"],
        ),
    ],
)
def test_options_of_graphs_need_graphs_and_sizes_that_batches_have(
    kind: DeviceKind, keys: dict[str, Any], found: list[str], run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), keys)
    assert [str(each) for each in graph_findings(config, PLATFORMS[kind])] == found


@pytest.mark.parametrize(
    ("kind", "keys", "found"),
    [
        ("npu", ON, []),
        ("npu", ON | {f"{AT}.max_num_seqs": 20}, []),
        ("npu", SIZES, []),
        (
            "npu",
            ON | SIZES | {f"{AT}.max_num_seqs": 65},
            [f"{AT}.cudagraph_capture_sizes=1,8,64: decode steps of 65 to 65 tokens run {WITHOUT}"],
        ),
        (
            "gpu",
            {f"{AT}.max_num_seqs": 600},
            [f"{AT}.cudagraph_capture_sizes=null: decode steps of 513 to 600 tokens run {WITHOUT}"],
        ),
        # A thousand graphs, each with a stream of its own and two of its group.
        (
            "npu",
            ON | MANY | {f"{AT}.infer_tensor_parallel_size": 2},
            [f"{AT}.cudagraph_capture_sizes={SPELLED}: 1000 graphs may exceed {STREAMS}; use 586"],
        ),
        ("npu", ON | MANY, []),
    ],
)
def test_sizes_leave_no_decode_step_without_a_graph_and_keep_to_the_streams(
    kind: DeviceKind, keys: dict[str, Any], found: list[str], run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), keys)
    assert [str(each) for each in graph_warnings(config, PLATFORMS[kind])] == found


@pytest.mark.parametrize(
    ("tp", "keys", "heads"),
    [(1, ON, None), (2, ON, None), (8, ON, 16), (8, {}, None), (32, ON, 4)],
)
def test_graphs_of_latent_attention_need_32_heads_on_a_device(
    tp: int, keys: dict[str, Any], heads: int | None, run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), keys | {f"{AT}.infer_tensor_parallel_size": tp})
    model = planned_description(str(MODELS / "DeepSeek-R1"))
    found = [*graph_findings_on(config, PLATFORMS["npu"], model)]
    assert [*graph_findings_on(config, PLATFORMS["gpu"], model)] == []
    assert [each.legal for each in found] == ([] if heads is None else [(True,)])
    said = f"infer_tensor_parallel_size={tp} are {heads}; use true"
    assert all(said in each.text for each in found)


def test_an_engine_gets_them_as_vllm_names_them_and_a_server_as_json(
    run_config: MakeConfig,
) -> None:
    def options(keys: dict[str, Any]) -> dict[str, Any]:
        generate = run_config(Path("model"), keys).generate_config
        return rollout_options("folder", generate, PLATFORMS["npu"], 1, served=True)

    def own(keys: dict[str, Any]) -> dict[str, Any]:
        generate = run_config(Path("model"), keys).generate_config
        return rollout_options("folder", generate, PLATFORMS["npu"], 1)

    assert options({})["compilation_config"] is None
    # Beside a trainer the engine compiles nothing.
    assert own(ON | {f"{AT}.max_num_seqs": 20})["compilation_config"] == {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 20],
    }
    given = options(ON | MODE | SIZES)
    assert given["enforce_eager"] is False
    assert given["compilation_config"] == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 8, 64],
    }
    assert own(ON | MODE | SIZES)["compilation_config"] == {
        "mode": 0,
        **given["compilation_config"],
    }
    command = command_of(given)
    place = command.index("--compilation-config")
    assert command[place + 1] == (
        '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 64]}'
    )
