"""A memory prediction refers to the same moment as the measurement."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.config.run import RunConfig
from mindrl.launch.memory_watch import MemoryWatch
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import Region
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import unordered_shardings


def measured(plan: MemoryPlan) -> list[MeasuredSnapshot]:
    """Return what an engine on a CPU shows: its weights are there once they are loaded."""
    weights = Region.ROLLOUT_WEIGHTS.value
    return [
        MeasuredSnapshot(
            label=planned.label,
            phase=planned.phase,
            region_bytes={
                region: size
                for region, size in planned.region_bytes.items()
                if planned.label != f"bring {weights}" or region != weights
            },
        )
        for planned in plan.of_rank(0)
    ]


def test_every_mark_stands_at_its_bar_though_an_engine_takes_its_weights_late(
    random_model: Callable[[bool], Path], run_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    plan = memory_plan(unordered_shardings(run_config(random_model(True))).ordered, None)
    assert MemoryWatch(plan, tmp_path).note(2, [measured(plan)]) is None
    lines = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    bare = [line["label"] for line in lines if line["predicted_bytes"] is None]
    assert bare == ["bring rollout_weights"]
    marked = [line for line in lines if line["label"] not in bare]
    assert len(marked) >= 8
    assert {"reshard", "rollout", "train"} <= {line["label"] for line in marked}
    for line in marked:
        assert line["predicted_bytes"] == line["total_bytes"], line["label"]


@pytest.mark.parametrize(
    ("label", "share", "is_told"),
    [
        ("train", 1.04, False),
        ("train", 1.06, True),
        ("train", 0.94, True),
        ("reshard", 1.06, True),
        # Weights that have a storage each leave before all of the engine's have come.
        ("reshard", 0.94, False),
    ],
)
def test_a_phase_more_than_a_twentieth_off_its_prediction_is_told_by_name(
    label: str,
    share: float,
    is_told: bool,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    plan = memory_plan(unordered_shardings(run_config(random_model(True))).ordered, None)
    moments = [
        replace(
            moment,
            region_bytes={region: int(n * share) for region, n in moment.region_bytes.items()},
        )
        if moment.label == label
        else moment
        for moment in measured(plan)
    ]
    said = MemoryWatch(plan, tmp_path).note(2, [moments])
    assert (said is not None) == is_told
    assert said is None or f"of device memory at '{label}'; the plan" in said
