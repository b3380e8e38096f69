"""Options of graphs: where they are refused, and what the engine gets."""

from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig

from mindrl.platform.device import PLATFORMS, DeviceKind
from mindrl.preflight.graph_checks import graph_findings
from mindrl.rollout.vllm.options import command_of, rollout_options

AT = "generate_config"
MODE = {f"{AT}.cudagraph_mode": "FULL_DECODE_ONLY"}
SIZES = {f"{AT}.cudagraph_capture_sizes": [1, 8, 64]}
NONE = "where the engine captures no graphs"
MOST = f"{AT}.max_num_batched_tokens=32, tokens of a step"
ON = {f"{AT}.enforce_eager": False}


@pytest.mark.parametrize(
    ("kind", "keys", "found"),
    [
        ("npu", ON | MODE | SIZES, []),
        ("gpu", MODE | SIZES, []),
        ("npu", {}, []),
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


def test_an_engine_gets_them_as_vllm_names_them_and_a_server_as_json(
    run_config: MakeConfig,
) -> None:
    def options(keys: dict[str, Any]) -> dict[str, Any]:
        generate = run_config(Path("model"), keys).generate_config
        return rollout_options("folder", generate, PLATFORMS["npu"], 1)

    assert options({})["compilation_config"] is None
    given = options(ON | MODE | SIZES)
    assert given["enforce_eager"] is False
    assert given["compilation_config"] == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 8, 64],
    }
    command = command_of(given)
    place = command.index("--compilation-config")
    assert command[place + 1] == (
        '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 64]}'
    )
