"""Metrics read back from JSON lines and TensorBoard event files."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mindrl.errors import OutputError
from mindrl.observability.tensorboard import TensorboardTracker
from mindrl.observability.trackers import JsonlTracker


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


def test_tensorboard_forgets_the_steps_that_a_run_does_again(tmp_path: Path) -> None:
    for first, value in ((0, 0.0), (3, 1.0)):
        tracker = TensorboardTracker(tmp_path, first)
        for step in range(max(first, 1), 5):
            tracker.log(step, {"loss": value})
        tracker.close()
        # In the order in which they were begun.
        (newest,) = tmp_path.glob("*.tfevents.*.*")
        newest.rename(tmp_path / f"events.out.tfevents.{first}")
    assert scalars(tmp_path, "loss") == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]


def test_tensorboard_keeps_every_scalar_of_a_step_under_its_own_name(tmp_path: Path) -> None:
    tracker = TensorboardTracker(tmp_path / "tb")
    tracker.log(3, {"reward/my_rewards.py:score": 0.25, "loss": -1.5})
    tracker.close()
    assert scalars(tmp_path / "tb", "reward/my_rewards.py:score") == [(3, 0.25)]
    assert scalars(tmp_path / "tb", "loss") == [(3, -1.5)]


def test_a_full_disk_is_an_error_with_the_path_and_what_was_written_stays_whole(
    tmp_path: Path,
) -> None:
    with pytest.raises(OutputError, match="/dev/full cannot be written: No space left on device"):
        JsonlTracker(Path("/dev/full")).log(1, {"loss": 0.5})
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from mindrl.errors import OutputError\n"
        "from mindrl.observability.tensorboard import TensorboardTracker\n"
        "from mindrl.observability.trackers import JsonlTracker\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "folder = Path(sys.argv[1])\n"
        "for tracker in (JsonlTracker(folder / 'metrics.jsonl'), TensorboardTracker(folder)):\n"
        "    try:\n"
        "        for step in range(1, 9): tracker.log(step, {'reward/mean': 0.5})\n"
        "    except OutputError as error: print(error)\n"
        "    tracker.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    (of_metrics, of_events) = done.stdout.splitlines()
    assert of_metrics.startswith(f"{tmp_path}/metrics.jsonl cannot be written: ")
    assert of_events.startswith(f"{tmp_path}/events.out.tfevents.")
    # Lines of 33 bytes, records of 48: three lines go into 100 bytes, and one step beside the head.
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert scalars(tmp_path, "reward/mean") == [(1, 0.5)]


def test_a_metric_named_step_is_refused_rather_than_written_over(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    with pytest.raises(AssertionError, match="'step' is reserved"):
        tracker.log(1, {"step": 2.0})
    tracker.close()


def test_a_file_in_place_of_the_tensorboard_folder_is_reported_with_its_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"{tmp_path}/file/tb/.* cannot be written: Not a dir"):
        TensorboardTracker(tmp_path / "file" / "tb")
