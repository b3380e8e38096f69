"""Metrics read back from JSON lines and TensorBoard event files."""

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mindrl.errors import OutputError
from mindrl.observability.trackers import JsonlTracker, TensorboardTracker, Trackers


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_two_steps_are_two_json_lines_that_can_be_read_before_the_tracker_is_closed(
    tmp_path: Path,
) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(1, {"reward/mean": 0.5, "update/kl": math.nan})
    tracker.log(2, {"reward/mean": 0.75})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    tracker.close()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "reward/mean": 0.5, "update/kl": None},
        {"step": 2, "reward/mean": 0.75},
    ]


def test_tensorboard_reads_back_the_steps_and_values_before_and_after_close(tmp_path: Path) -> None:
    tracker = TensorboardTracker(tmp_path / "tb")
    tracker.log(1, {"reward/mean": 0.5})
    assert scalars(tmp_path / "tb", "reward/mean") == [(1, 0.5)]
    tracker.log(2, {"reward/mean": 0.75})
    tracker.close()
    assert scalars(tmp_path / "tb", "reward/mean") == [(1, 0.5), (2, 0.75)]


def test_trackers_hand_the_same_step_to_both_and_close_both(tmp_path: Path) -> None:
    jsonl = JsonlTracker(tmp_path / "metrics.jsonl")
    with Trackers([jsonl, TensorboardTracker(tmp_path / "tb")]) as trackers:
        trackers.log(3, {"loss": 0.25})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3, "loss": 0.25}
    assert scalars(tmp_path / "tb", "loss") == [(3, 0.25)]
    with pytest.raises(ValueError, match="closed file"):
        jsonl.log(4, {"loss": 0.0})


def test_a_tracker_that_cannot_close_does_not_keep_those_before_and_after_it_open(
    tmp_path: Path,
) -> None:
    before, after = JsonlTracker(tmp_path / "1.jsonl"), JsonlTracker(tmp_path / "2.jsonl")
    trackers = Trackers([before, JsonlTracker(Path("/dev/full")), after])
    with pytest.raises(OutputError, match="/dev/full"):
        trackers.log(1, {"loss": 0.5})
    with pytest.raises(OutputError, match="/dev/full"):
        trackers.close()
    for tracker in (before, after):
        with pytest.raises(ValueError, match="closed file"):
            tracker.log(2, {"loss": 0.5})


def test_a_metric_named_step_is_refused_rather_than_written_over(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    with pytest.raises(AssertionError, match="'step' is taken"):
        tracker.log(1, {"step": 2.0})
    tracker.close()


def test_a_file_in_place_of_the_tensorboard_folder_is_reported_with_its_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"{tmp_path}/file/tb cannot be written: Not a directory"):
        TensorboardTracker(tmp_path / "file" / "tb")
