"""The libraries themselves, without network; each is skipped where it is not installed."""

import json
from pathlib import Path

import pytest

from mindrl.config.tracking import TRACKERS
from mindrl.tracking.job import TrackerJob, TrackerState
from mindrl.tracking.libraries import LIBRARIES
from mindrl.tracking.process import ProcessTracker


def test_the_names_of_the_configuration_are_those_that_can_be_opened() -> None:
    assert tuple(LIBRARIES) == TRACKERS


def run_of(root: Path, name: str, first: int, last: int) -> dict[str, object]:
    """Hand the steps up to the last to a tracker, whose run goes on before the first of them."""
    metrics = root / "metrics.jsonl"
    lines = [{"step": step, "reward/own.py:score": step / 8} for step in range(1, last + 1)]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    job = TrackerJob(
        name=name,
        project="mindrl-tests",
        experiment="a run",
        offline=True,
        timeout_seconds=120,
        goes_on=first > 1,
        folder=str(root / "trackers" / name),
        metrics=str(metrics),
        config={f"section.key_{number}": number for number in range(120)},
    )
    tracker = ProcessTracker(job, root / f"{name}.log")
    tracker.close()
    return tracker.outcome()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_and_its_going_on_are_kept_without_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    for key in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(key, "http://127.0.0.1:9")
    for first, last in ((1, 3), (3, 5)):
        outcome = run_of(tmp_path, name, first, last)
        assert (outcome["kept"], outcome["missed"], outcome["problem"]) == (last, 0, None)
    state = TrackerState.of(str(tmp_path / "trackers" / name))
    assert state.id is not None
    named = [path for path in (tmp_path / "trackers").rglob("*") if state.id in path.name]
    assert named, "the run goes on under its name"
    if name == "mlflow":
        (kept,) = (tmp_path / "trackers").rglob("own.py_score")
        found = [line.split()[1:] for line in kept.read_text("utf-8").splitlines()]
        assert found == [[str(step / 8), str(step)] for step in range(1, 6)]
