"""The scheduler over real processes: it restarts, adopts, gives up, and stops in order."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from spool_jobs import LIMITS
from test_spool_jobs import SCRIPT, Jobs

from mindrl.errors import ClusterError, StopRequestedError
from mindrl.launch.scheduler import Job, Scheduler
from mindrl.spool.folder import SpoolProgress

STEPS = 9


class Scheduled:
    """A scheduler of the jobs of a spool, with what it has said."""

    def __init__(self, root: Path, *, most_starts: int = 9) -> None:
        self.by_hand, self.said = Jobs(root, STEPS), list[str]()
        self.spool = self.by_hand.spool
        self.scheduler = Scheduler(
            spool=self.spool,
            leases=self.spool.leases("the scheduler"),
            jobs={name: self.job(root, name) for name in ("train", "rollout")},
            most_starts=most_starts,
            notify=self.said.append,
        )

    def job(self, root: Path, name: str) -> Job:
        places = (self.spool.root, root / name)
        return Job(
            name=name,
            lease="train" if name == "train" else "rollout-rollout",
            command=[sys.executable, str(SCRIPT), name, *map(str, (*places, STEPS, -1))],
            log=root / f"{name}.txt",
        )

    def starts(self, name: str) -> int:
        return sum(line.startswith(f"starting {name}") for line in self.said)


def at_looks(*looks: int, do: Callable[[], None]) -> Callable[[], None]:
    """Do something at some of the moments at which the scheduler looks."""
    count = iter(range(1 << 30))

    def check_interrupt() -> None:
        if next(count) in looks:
            do()

    return check_interrupt


def test_jobs_that_are_killed_are_started_again_until_all_is_trained(tmp_path: Path) -> None:
    scheduled = Scheduled(tmp_path)

    def kill() -> None:
        for job in scheduled.scheduler.jobs.values():
            if job.process is not None:
                job.process.kill()

    scheduled.scheduler.run(at_looks(30, 60, do=kill))
    scheduled.by_hand.require_each_once()
    assert scheduled.starts("train") >= 2
    assert "starting train again after exit code -9" in scheduled.said
    assert scheduled.said[-1].startswith(
        f"train: at step {STEPS}, saved {STEPS} | weights: {STEPS}"
    )


def test_a_job_that_another_scheduler_left_behind_is_not_started_twice(tmp_path: Path) -> None:
    scheduled = Scheduled(tmp_path)
    scheduled.by_hand.start("train")
    leases = scheduled.spool.leases("a test")
    while not leases.living("train"):
        pass
    scheduled.scheduler.run(lambda: None)
    scheduled.by_hand.wait()
    scheduled.by_hand.require_each_once()
    assert (scheduled.starts("train"), scheduled.starts("rollout")) == (0, 1)


@pytest.mark.parametrize("in_turns", [False, True])
def test_the_train_job_of_a_finished_spool_is_started_once_and_may_refuse_it(
    in_turns: bool, tmp_path: Path
) -> None:
    scheduled = Scheduled(tmp_path)
    scheduler, train = scheduled.scheduler, scheduled.scheduler.jobs["train"]
    run = scheduler.run_in_turns if in_turns else scheduler.run
    scheduled.spool.note(SpoolProgress(gathering=STEPS, confirmed=STEPS, done=True))
    train.command = [sys.executable, "-c", "print('verified')"]
    run(lambda: None)
    assert train.log.read_text() == "verified\n"
    train.command = [sys.executable, "-c", "raise SystemExit('error: no checkpoint')"]
    with pytest.raises(ClusterError, match=r"is done, but train refuses it:\n(.*\n)*.*no checkp"):
        run(lambda: None)
    assert (scheduled.starts("train"), scheduled.starts("rollout")) == (2, 0)


@pytest.mark.parametrize(("code", "starts"), [(1, 3), (2, 1)])
def test_a_job_that_ends_again_and_again_ends_the_scheduler_with_its_words(
    code: int, starts: int, tmp_path: Path
) -> None:
    scheduled = Scheduled(tmp_path, most_starts=3)
    (tmp_path / "train.txt").write_text("error: no such model\n")
    scheduled.scheduler.jobs["train"].command = [sys.executable, "-c", f"raise SystemExit({code})"]
    with pytest.raises(ClusterError, match="error: no such model"):
        scheduled.scheduler.run(lambda: None)
    assert scheduled.starts("train") == starts
    scheduled.scheduler.end(grace_seconds=5)
    rollout = scheduled.scheduler.jobs["rollout"].process
    assert rollout is not None
    assert rollout.poll() is not None


def test_a_wish_to_stop_reaches_all_jobs(tmp_path: Path) -> None:
    scheduled = Scheduled(tmp_path)

    def stop() -> None:
        raise StopRequestedError("stopped by SIGTERM")

    with pytest.raises(StopRequestedError):
        scheduled.scheduler.run(at_looks(3, do=stop))
    assert scheduled.spool.has_signal("stop")
    scheduled.scheduler.end(grace_seconds=5)
    assert not scheduled.spool.leases("a test").living("train")


def test_in_turns_nothing_new_ends_the_scheduler(tmp_path: Path) -> None:
    scheduled = Scheduled(tmp_path)
    for job in scheduled.scheduler.jobs.values():
        job.command = [sys.executable, "-c", "pass"]
    with pytest.raises(ClusterError, match="no progress after starting every job once"):
        scheduled.scheduler.run_in_turns(lambda: None)
    assert [line for line in scheduled.said if line.startswith("starting")] == [
        "starting rollout",
        "starting train",
    ]


def test_the_program_says_how_it_is_used() -> None:
    command = [sys.executable, "cli/job.py"]
    root = Path(__file__).parents[3]
    assert LIMITS.poll_seconds < 1
    shown = subprocess.run(
        [*command, "--help"], cwd=root, capture_output=True, text=True, check=True
    )
    assert all(f"job {name} " in shown.stdout for name in ("train", "rollout", "schedule"))
    refused = subprocess.run(
        [*command, "learn"], cwd=root, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (2, "")
