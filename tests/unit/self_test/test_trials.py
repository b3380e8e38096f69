"""The self-test's plan and its judgement; that it runs is shown in tests/distributed and e2e."""

import math
import os
from pathlib import Path

import pytest

from mindrl.platform.device import PLATFORMS
from mindrl.self_test.plan import make_model, self_test_plan
from mindrl.self_test.trials import SelfTest, combined


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self_test")
    make_model(folder)
    return folder


@pytest.mark.parametrize(
    ("devices", "tp", "pp", "rollout_tp"),
    [(1, 1, 1, 1), (2, 2, 1, 1), (3, 1, 1, 1), (4, 2, 2, 2), (6, 2, 1, 1), (8, 2, 2, 2)],
)
def test_trainer_and_rollout_hold_the_model_in_different_ways_where_devices_allow_it(
    model: Path, devices: int, tp: int, pp: int, rollout_tp: int
) -> None:
    plan = self_test_plan(model, PLATFORMS["npu"], devices)
    actor = plan.layouts["actor"]
    assert (actor.world_size, actor.tp, actor.pp, plan.rollout.tp) == (devices, tp, pp, rollout_tp)
    assert plan.train_dtype == plan.config.generate_config.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("figures", "wrong"),
    [
        ({"max_difference": 0.0}, ""),
        ({"max_difference": 1.0}, "max difference 1 must be at most 0"),
        ({"max_difference": math.nan}, "max difference nan must be at most 0"),
        ({"mean_gap_nats": 0.01, "nonfinite_tokens": 0.0}, ""),
        ({"mean_gap_nats": 0.02}, "mean gap nats 0.02 must be at most 0.01"),
        ({"mean_gap_nats": math.nan}, "mean gap nats nan must be at most 0.01"),
        (
            {"mean_gap_nats": 0.0, "nonfinite_tokens": 3.0},
            "nonfinite tokens 3 must be at most 0",
        ),
        ({"seconds": 100.0, "all_reduce_gb_per_second": 0.1}, ""),
    ],
)
def test_differences_and_gaps_are_judged_and_speed_is_not(
    model: Path, tmp_path: Path, figures: dict[str, float], wrong: str
) -> None:
    platform = PLATFORMS["cpu"]
    tested = SelfTest(self_test_plan(model, platform, 2), platform, tmp_path)
    assert tested.judged(figures) == wrong


def test_of_all_ranks_bytes_are_added_the_worst_difference_and_the_lowest_speed_count() -> None:
    assert combined("sent_bytes", [1.0, 2.0]) == 3.0
    assert combined("max_difference", [0.0, 2.0]) == 2.0
    assert math.isnan(combined("max_difference", [0.0, math.nan]))
    assert combined("to_host_gb_per_second", [12.0, 3.0]) == 3.0


def test_behind_a_failed_start_nothing_else_is_tried(model: Path, tmp_path: Path) -> None:
    platform, here = PLATFORMS["cpu"], len(os.sched_getaffinity(0))
    # The machine has one core too few: Ray is not even started.
    found = [*SelfTest(self_test_plan(model, platform, here + 1), platform, tmp_path).trials()]
    assert not any(trial.passed for trial in found)
    assert f"num_npus={here + 1}: this machine has {here} CPU device(s)" in found[0].error
    assert [trial.error for trial in found[1:]] == ["skipped, because start failed"] * 6
    assert [trial.what for trial in found] == [
        "start",
        "collectives",
        "copies",
        "offload and onload",
        "trainer and engine",
        "reshard",
        "log-prob gap",
    ]
