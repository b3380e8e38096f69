"""The layouts in which a run continues when devices are lost."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.launch import shrink
from mindrl.launch.shrink import shrunk
from mindrl.platform.device import PLATFORMS, Platform
from mindrl.preflight.checks import check
from mindrl.preflight.run_shardings import RunPlan

CPU = PLATFORMS["cpu"]


@pytest.fixture
def plan_of(
    run_config: Callable[..., RunConfig], random_model: Callable[[bool], Path], tmp_path: Path
) -> Callable[..., RunPlan]:
    """Return what plans a run on nodes of 4 devices, with further keys."""
    data = tmp_path / "train.jsonl"
    data.touch()

    def plan(
        devices: int, tp: int, rollout_tp: int, changes: Mapping[str, object] = MappingProxyType({})
    ) -> RunPlan:
        overrides = {
            "megatron_training.data_path": str(data),
            "rl_config.actor_resource.num_npus": devices,
            "rl_config.actor_resource.npus_per_node": 4,
            "actor_config.tensor_model_parallel_size": tp,
            "generate_config.infer_tensor_parallel_size": rollout_tp,
        }
        return check(run_config(random_model(tied=False), {**overrides, **changes}), CPU)

    return plan


def sizes(plan: RunPlan) -> tuple[int, int, int, int]:
    """Return the devices, TP and DP of training, and TP of rollout."""
    actor = plan.layouts["actor"]
    return plan.config.world_size, actor.tp, actor.replicas, plan.rollout.tp


@pytest.mark.parametrize(
    ("before", "present", "after"),
    [
        # A node of two is gone: half the replicas.
        ((8, 2, 2), [4], (4, 2, 2, 2)),
        # The run's own layout needs an even number of devices.
        ((4, 2, 2), [3], (2, 2, 1, 2)),
        # It does not fit one device: a coarser one is taken.
        ((2, 2, 2), [1], (1, 1, 1, 1)),
        ((8, 4, 4), [4, 3], (4, 4, 1, 4)),
    ],
)
def test_the_nearest_legal_layout_of_the_most_devices_is_taken(
    before: tuple[int, int, int],
    present: list[int],
    after: tuple[int, int, int, int],
    plan_of: Callable[..., RunPlan],
) -> None:
    assert sizes(shrunk(plan_of(*before), CPU, present)) == after


SCHEDULE, LAYERS = "actor_config.archon.pp_schedule", "actor_config.num_layer_list"
STAGES = {"actor_config.pipeline_model_parallel_size": 2, LAYERS: [1, 1]}


@pytest.mark.parametrize(
    ("devices", "changes", "adapted"),
    [
        (
            4,
            {"actor_config.backend": "archon:d4", "actor_config.archon.fsdp_size": 4},
            {"actor_config.archon.fsdp_size": 2},
        ),
        (
            2,
            {"actor_config.backend": "archon:d1p2", SCHEDULE: "1F1B", **STAGES},
            {SCHEDULE: None, LAYERS: None},
        ),
        (2, STAGES, {LAYERS: None}),
        (
            2,
            {
                "actor_config.tensor_model_parallel_size": 2,
                "megatron_training.sequence_parallel": True,
            },
            {"megatron_training.sequence_parallel": False},
        ),
        (
            2,
            {"profiler_config.profile": True, "profiler_config.profile_ranks": [0, 1]},
            {"profiler_config.profile_ranks": (0,)},
        ),
    ],
    ids=["shards", "schedule", "layers", "sequence parallel", "profiles"],
)
def test_keys_that_follow_the_sizes_take_legal_values(
    devices: int,
    changes: dict[str, object],
    adapted: dict[str, object],
    plan_of: Callable[..., RunPlan],
) -> None:
    plan = shrunk(plan_of(devices, 1, 1, changes), CPU, [devices - 1])
    assert plan.config.world_size == devices // 2
    assert {key: plan.config.value_of(key) for key in adapted} == adapted


def test_layouts_without_equal_shares_are_not_judged_by_the_rules(
    plan_of: Callable[..., RunPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 sequences need 1, 2, 4, 8 or 16 replicas: of 33 to 60 devices no layout has as many."""
    before, judged = plan_of(64, 4, 4), []

    def counted(config: RunConfig) -> list[Finding]:
        judged.append(config.world_size)
        return findings(config)

    monkeypatch.setattr(shrink, "findings", counted)
    assert sizes(shrunk(before, CPU, [4] * 15)) == (32, 4, 8, 4)
    assert judged == [32, 32]


def test_without_a_device_the_run_cannot_go_on(plan_of: Callable[..., RunPlan]) -> None:
    with pytest.raises(ConfigError, match=r"^rl_config\.actor_resource\.num_npus=4: this model"):
        shrunk(plan_of(4, 2, 2), CPU, [])


def test_only_layouts_that_the_rules_allow_are_planned(
    plan_of: Callable[..., RunPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of a large model takes seconds, and there are thousands of layouts."""
    before, planned = plan_of(8, 4, 4), []

    def counted(config: RunConfig, platform: Platform, *, goes_on: bool) -> RunPlan:
        planned.append(findings(config))
        return check(config, platform, goes_on=goes_on)

    monkeypatch.setattr(shrink, "check", counted)
    assert sizes(shrunk(before, CPU, [4, 1])) == (4, 4, 1, 4)
    assert planned == [[]]
