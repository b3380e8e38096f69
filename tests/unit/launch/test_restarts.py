"""How often a run restarts after it lost workers, and its records of restarts."""

import json
from pathlib import Path

import pytest

from mindrl.errors import WorkerDiedError
from mindrl.launch.restarts import Restarts

DEATH = WorkerDiedError("worker-1 died")


def restarts_of(path: Path, most: int, told: list[str]) -> Restarts:
    return Restarts(most=most, path=path / "faults.jsonl", notify=told.append, checkpoint_step=0)


def test_the_third_fault_behind_one_checkpoint_ends_a_run_that_may_restart_twice(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    restarts = restarts_of(tmp_path, 2, told)
    restarts.after(DEATH, 3, checkpoint_step=0)
    restarts.after(DEATH, 1, checkpoint_step=0)
    with pytest.raises(WorkerDiedError, match=r"^worker-1 died$"):
        restarts.after(DEATH, 2, checkpoint_step=0)
    assert restarts.count == 2
    assert told == [
        "warning: worker-1 died",
        "restart 1: step 4 was lost; continuing after step 0",
        "warning: worker-1 died",
        "restart 2: step 2 was lost; continuing after step 0",
        "rl_config.max_restarts=2 after step 0 is reached",
    ]


def test_a_new_checkpoint_counts_from_0(tmp_path: Path) -> None:
    restarts = restarts_of(tmp_path, 1, [])
    for checkpoint_step in (2, 4, 6):
        restarts.after(DEATH, checkpoint_step + 1, checkpoint_step=checkpoint_step)
    assert restarts.count == 3
    with pytest.raises(WorkerDiedError):
        restarts.after(DEATH, 7, checkpoint_step=6)


def test_without_restarts_the_first_fault_ends_the_run_and_leaves_no_record(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(WorkerDiedError):
        restarts_of(tmp_path, 0, told).after(DEATH, 3, checkpoint_step=0)
    assert told == []
    assert not (tmp_path / "faults.jsonl").exists()


def test_each_fault_is_a_line_that_says_what_was_lost(tmp_path: Path) -> None:
    restarts = restarts_of(tmp_path, 3, [])
    restarts.after(DEATH, 3, checkpoint_step=2)
    (line,) = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert line.pop("time") > 0
    assert line == {
        "step": 4,
        "resumed_behind": 2,
        "kind": "WorkerDiedError",
        "error": "worker-1 died",
    }


def test_a_restart_is_timed_from_the_loss_and_not_from_the_first_start(tmp_path: Path) -> None:
    restarts = restarts_of(tmp_path, 3, [])
    restarts.began -= 100
    assert 100 <= restarts.metrics()["seconds/start"] < 160
    restarts.after(DEATH, 3, checkpoint_step=2)
    assert 0 <= restarts.metrics()["seconds/start"] < 60
