"""Two jobs that a spool joins, as processes: killed, without room, begun in either order."""

import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spool_jobs import LIMITS, PARTS, ids_of, learned, requests_of

from mindrl.spool.files import unsealed
from mindrl.spool.folder import Spool

SCRIPT = Path(__file__).with_name("spool_jobs.py")


class Jobs:
    """The jobs of a spool, one of each kind at first."""

    def __init__(self, root: Path, steps: int) -> None:
        self.steps = steps
        self.root, self.spool = root, Spool(root / "spool", LIMITS)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, file_bytes: int = -1) -> None:
        """Start a job; one with a limit has no room for larger files."""
        kind, places = name.partition("-")[0], (self.spool.root, self.root / name)
        command = [sys.executable, str(SCRIPT), kind, *map(str, (*places, self.steps, file_bytes))]
        with (self.root / f"{name}.txt").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, name: str) -> bool:
        """Kill a job; says whether it was alive."""
        self.running[name].kill()
        return self.running[name].wait() != 0

    def wait(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        for name, process in self.running.items():
            left = max(0.0, deadline - time.monotonic())
            assert process.wait(timeout=left) == 0, (self.root / f"{name}.txt").read_text()

    def require_each_once(self) -> None:
        """Require each response to be in the model once, and the model to be the undisturbed."""
        found = json.loads(unsealed(self.root / "train" / "checkpoint"))
        asked = [each.prompts for n in range(1, self.steps + 1) for each in requests_of(n)]
        each = [ids for prompts in asked for ids in ids_of(prompts)]
        assert sorted((uid, n) for uid, n in found["trained"]) == each
        assert found["model"] == learned(self.steps).hex()
        assert self.spool.records.answered() == []
        assert self.spool.weights.versions() == [self.steps - 1, self.steps]


@pytest.mark.nightly
def test_20_kills_of_either_or_both_train_each_response_once_and_the_same_model(
    tmp_path: Path,
) -> None:
    jobs, chance = Jobs(tmp_path, 90), random.Random(5)
    names = ["train", "rollout", "rollout-2"]
    for name in names:
        jobs.start(name)
    kills = 0
    while kills < 20 and jobs.spool.progress().confirmed < jobs.steps:
        # Starting takes longer than a step: a job has to get somewhere between two kills.
        time.sleep(chance.uniform(0.1, 0.6))
        for name in chance.sample(names, chance.choice([1, 1, 2])):
            kills += jobs.kill(name)
            jobs.start(name)
    assert kills >= 20
    jobs.wait()
    jobs.require_each_once()


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, 9)
    jobs.start("train")
    jobs.start("rollout", file_bytes=2000)
    log = tmp_path / "rollout.txt"
    deadline = time.monotonic() + 60
    while "waits for free space" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert jobs.spool.records.answered() == []
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(jobs.running["rollout"].pid, resource.RLIMIT_FSIZE, unlimited)
    jobs.wait()
    jobs.require_each_once()
    assert log.read_text().count("waits for free space") == 1


def test_a_damaged_record_is_told_of_set_aside_and_drawn_again(tmp_path: Path) -> None:
    """The rollout job comes first, and its records are spoiled before there is a train job."""
    jobs = Jobs(tmp_path, 9)
    jobs.start("train")
    deadline = time.monotonic() + 60
    while len(jobs.spool.requests.all()) < 2 * PARTS:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    jobs.kill("train")
    jobs.start("rollout")
    while len(places := jobs.spool.records.answered()) < 2 * PARTS:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cut, changed = (jobs.spool.records.root / str(place) for place in (places[1], places[4]))
    cut.write_bytes(cut.read_bytes()[:-1])
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    jobs.start("train")
    jobs.wait()
    jobs.require_each_once()
    told = (tmp_path / "train.txt").read_text().splitlines()
    found = [line.partition(" is damaged")[0] for line in told if " is damaged" in line]
    assert found == [str(cut), str(changed)]
    assert {path.name for path in jobs.spool.records.damaged.iterdir()} == {
        f"{cut.name}.0",
        f"{changed.name}.0",
    }
