"""docs/reference/ascend-configs.md shows the plans of the shipped Ascend configurations."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nightly import half_unless_night

from mindrl.config.run import RunConfig
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import checked_run
from mindrl.preflight.memory_plan import Capacity
from mindrl.preflight.shipped import shipped_sizes
from mindrl.programs.compose import composed_config

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
HOST_GIB = {8: 1024, 16: 2048}
"""Of a node with so many devices, as the page assumes."""
MODELS = (
    "qwen25_7b",
    "qwen3_8b",
    "qwen25_vl_7b",
    "qwen3_vl_8b",
    "qwen25_32b",
    "qwen3_30b_a3b",
    "qwen35_35b_a3b",
    "qwen3_next_80b_a3b",
    "qwen3_235b_a22b",
    "deepseek_r1_671b",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The program that makes the tables, as a module: what takes seconds is then done once."""
    spec = spec_from_file_location("make_ascend_table", ROOT / "scripts" / "make_ascend_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs(script: ModuleType) -> dict[str, RunConfig]:
    found: dict[str, RunConfig] = script.ascend_runs()
    return found


@pytest.mark.nightly
def test_each_of_ten_models_has_a_run_on_nodes_of_8_and_one_on_nodes_of_16(
    runs: dict[str, RunConfig],
) -> None:
    of_a2 = {f"grpo_{model}" for model in MODELS}
    assert set(runs) == of_a2 | {f"{name}_a3" for name in of_a2} | {"ppo_qwen25_7b"}
    for name, config in runs.items():
        resource = config.rl_config.actor_resource
        expected = (16, 62_700) if name.endswith("_a3") else (8, 62_400)
        assert (resource.npus_per_node, config.rl_config.device_memory_mib) == expected, name
        assert resource.num_npus % resource.npus_per_node == 0, f"{name}: whole nodes"
        assert config.actor_config.tensor_model_parallel_size <= resource.npus_per_node, name


@pytest.mark.nightly
def test_a_run_on_a3_differs_from_the_one_on_a2_in_devices_and_layout_alone(
    runs: dict[str, RunConfig],
) -> None:
    for model in MODELS:
        ours, theirs = runs[f"grpo_{model}"], runs[f"grpo_{model}_a3"]
        assert ours.megatron_training == theirs.megatron_training
        assert ours.generate_config.sampling_config == theirs.generate_config.sampling_config
        assert ours.sequences_per_step == theirs.sequences_per_step
        assert ours.actor_config.load == theirs.actor_config.load


def test_check_has_no_finding_on_any_run_with_devices_and_hosts_as_assumed(
    runs: dict[str, RunConfig],
) -> None:
    for name, config in half_unless_night(runs).items():
        mib, per_node = config.rl_config.device_memory_mib, config.rl_config.actor_resource
        assert mib is not None
        there = Capacity(device_bytes=mib << 20, host_bytes=HOST_GIB[per_node.npus_per_node] * GIB)
        found = checked_run(config, PLATFORMS["npu"], there, needs_files=False)
        assert found.findings == [], name
        assert found.models is not None, f"{name}: sizes are shipped"
        assert list(shipped_sizes(config)) == [config.actor_config.load]


def test_check_would_find_a_run_on_half_of_its_nodes() -> None:
    """The rule that passes them all is not asleep."""
    half = ["rl_config.actor_resource.num_npus=8", "actor_config.pipeline_model_parallel_size=1"]
    config = composed_config("grpo_qwen25_32b", half)
    there = Capacity(device_bytes=62_400 << 20)
    (finding,) = checked_run(config, PLATFORMS["npu"], there, needs_files=False).findings
    # 32.76 billion parameters on 8 devices: 6 bytes and 12 bytes of each over all of them; and
    # graphs of 11 sizes, which take 1 MiB in each of 64 layers.
    assert finding.field == "rl_config.device_memory_mib"
    (legal,) = finding.legal
    assert isinstance(legal, int)
    graphs = 11 * 64 << 20
    assert legal * (1 << 20) == pytest.approx(32_763_876_352 * 18 / 8 + graphs, rel=1e-3)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_page_shows_the_plans_and_each_leaves_ten_gib_of_a_device(
    script: ModuleType, runs: dict[str, RunConfig]
) -> None:
    rows: dict[str, Any] = {name: script.row(name, config) for name, config in runs.items()}
    page = script.PAGE.read_text(encoding="utf-8")
    made = script.page_with(script.tables([*rows.values()]))
    assert page == made, "run python scripts/make_ascend_table.py --write"
    for name, row in rows.items():
        assert row.peak <= row.capacity, name
        assert row.room >= 10 * GIB, name
        assert row.tensor_nodes == 1, name
        assert row.host_of_node <= HOST_GIB[row.devices_per_node] * GIB, name
        # Every replica can hold its longest sequence many times over.
        assert row.kv_cache_tokens >= 20 * row.longest_sequence, name
    # 671.03 billion parameters of 2 bytes on 32 ranks, and what latent attention keeps whole.
    deepest = rows["grpo_deepseek_r1_671b"]
    rollout_weights = deepest.peak - deepest.kv_cache_tokens * 61 * (512 + 64) * 2
    assert 1.0 < rollout_weights / (671_026_419_200 * 2 / 32) < 1.1
    assert {name for name, row in rows.items() if row.stage_nodes > 1} == {
        "grpo_qwen35_35b_a3b",
        "grpo_qwen3_next_80b_a3b",
        "grpo_qwen3_next_80b_a3b_a3",
        "grpo_qwen3_235b_a22b",
        "grpo_deepseek_r1_671b",
        "grpo_deepseek_r1_671b_a3",
    }
    # What crosses nodes of A2 need not cross the one node of A3.
    assert rows["grpo_qwen25_32b"].reshard_across_nodes > 0
    assert rows["grpo_qwen25_32b_a3"].reshard_across_nodes == 0
