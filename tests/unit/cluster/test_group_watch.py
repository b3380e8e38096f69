"""Hanging workers are distinguished from waiting ones; real processes, a limit of one second."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

import psutil
import pytest

from mindrl.cluster.group_watch import GroupWatch, Hang, Vigil
from mindrl.cluster.node_watch import NodeWatch, ProcessKey
from mindrl.platform.endings import start_ticks

LIMIT = "for 1 s (rl_config.heartbeat_timeout_seconds)"
Start = Callable[..., GroupWatch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes that do something each, watched in the order of their ranks."""
    processes = []

    def started(*doing: str) -> GroupWatch:
        keys = {}
        for rank, what in enumerate(doing):
            script = Path(__file__).with_name("hanging_process.py")
            command = [sys.executable, str(script), what, str(tmp_path / f"{rank}.log")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            keys[rank] = ProcessKey(*map(int, process.stdout.readline().split()))
        watch = object.__new__(GroupWatch)
        watch.here, watch.others = NodeWatch(keys), []
        watch.timeout_seconds, watch.interval_seconds = 1, 0.2
        watch.known, watch.lock = set(), Lock()
        return watch

    yield started
    for process in processes:
        process.kill()
        process.wait()


def found(watch: GroupWatch, seconds: float = 20.0, *, silence_counts: bool = True) -> Hang | None:
    """Look until somebody hangs, which a busy machine shows late, or some time has passed."""
    vigil, began = Vigil(watch, silence_counts=silence_counts), time.monotonic()
    while time.monotonic() - began < seconds:
        if hang := vigil.look(sorted(watch.here.processes)):
            assert time.monotonic() - began >= 1
            return hang
        time.sleep(watch.interval_seconds)
    return None


def test_a_stopped_worker_is_found_beside_one_that_gets_on(start: Start) -> None:
    watch = start("gets_on", "is_stopped")
    stopped = f"was suspended by a signal {LIMIT}"
    assert found(watch) == Hang(ranks=[1], seen=stopped)
    # So it is while engines start, when nobody is asked to tick.
    assert found(watch, silence_counts=False) == Hang(ranks=[1], seen=stopped)


def test_a_worker_that_is_gone_is_known_without_a_call(start: Start) -> None:
    watch = start("gets_on", "gets_on")
    assert watch.gone() == []
    watch.here.processes[1].kill()
    watch.here.processes[1].wait()
    assert watch.gone() == [1]


def test_a_worker_that_is_seen_to_be_stopped_later_is_named_beside_the_first(start: Start) -> None:
    """As one on another node, of which the driver hears a look later."""
    watch = start("gets_on", "gets_on")
    vigil, (first, second) = Vigil(watch, silence_counts=False), watch.here.processes.values()
    first.suspend()
    for _ in range(3):
        assert vigil.look([0, 1]) is None
        time.sleep(watch.interval_seconds)
    second.suspend()
    deadline = time.monotonic() + 10
    while (hang := vigil.look([0, 1])) is None and time.monotonic() < deadline:
        time.sleep(watch.interval_seconds)
    assert vigil.stopped[1] < 1
    assert hang == Hang(ranks=[0, 1], seen=f"was suspended by a signal {LIMIT}")


def test_whoever_waits_is_well_while_another_gets_on_and_hangs_with_one_that_spins(
    start: Start,
) -> None:
    assert found(start("waits", "gets_on"), seconds=2.0) is None
    watch = start("waits", "spins")
    hang = found(watch, silence_counts=True)
    assert hang == Hang(ranks=[1, 0], seen=f"made no progress {LIMIT}: running, sleeping")
    assert found(watch, seconds=2.0, silence_counts=False) is None


@pytest.mark.distributed
@pytest.mark.nightly
def test_of_a_collective_that_one_rank_does_not_join_both_stacks_are_in_the_logs(
    start: Start, tmp_path: Path
) -> None:
    watch = start("waits_in_a_collective", "spins_and_joins_no_collective")
    while not all((tmp_path / f"joined{rank}").exists() for rank in (0, 1)):
        time.sleep(0.1)
    hang = found(watch)
    assert hang == Hang(ranks=[1, 0], seen=f"made no progress {LIMIT}: running, sleeping")
    watch.dump_stacks()
    assert "in all_reduce" in (tmp_path / "0.log").read_text()
    assert "in spins_and_joins_no_collective" in (tmp_path / "1.log").read_text()


def test_a_rollout_that_spins_is_found_although_another_replica_gets_on(start: Start) -> None:
    hang = found(start("gets_on", "spins_where_others_do_not_matter"))
    assert hang == Hang(ranks=[1], seen=f"made no progress {LIMIT}: running")


def test_a_writer_gets_on_for_the_worker_that_waits_for_it_and_for_no_other(start: Start) -> None:
    waiting = start("waits_for_its_writer")
    assert found(waiting, seconds=2.0) is None
    # Nor is the writing work by which a call is judged to take too long.
    count = waiting.look()[0].count
    assert count.ticks > 50
    assert count.work == 0
    hang = found(start("spins_beside_its_writer"))
    assert hang is not None
    assert hang.ranks == [0]


def test_time_in_which_nobody_looked_is_nobodys_silence(start: Start) -> None:
    watch = start("waits")
    vigil = Vigil(watch, silence_counts=True)
    assert vigil.look([0]) is None
    time.sleep(1.5)
    assert vigil.look([0]) is None
    assert 0.39 < vigil.silent[0] <= 0.4


@pytest.mark.parametrize("doing", ["spins", "waits", "holds_the_interpreter", "is_stopped"])
def test_stacks_of_every_kind_of_hang_are_in_the_log_and_then_it_is_ended_with_its_children(
    doing: str, start: Start, tmp_path: Path
) -> None:
    watch = start(doing)
    (process,) = watch.here.processes.values()
    wait_for_status(process, psutil.STATUS_STOPPED if doing == "is_stopped" else None)
    children = process.children()
    watch.dump_stacks()
    log = (tmp_path / "0.log").read_text()
    assert f"in {doing}" in log
    assert log.count("most recent call first") == 1
    process.suspend()
    began = time.monotonic()
    watch.end()
    assert time.monotonic() - began < 6
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in still(process, *children))


def test_a_process_that_has_the_number_of_one_that_is_gone_is_left_alone(start: Start) -> None:
    watch = start("gets_on")
    (process,) = watch.here.processes.values()
    ticks = start_ticks(process.pid)
    assert ticks is not None
    key = ProcessKey(process.pid, ticks - 1, 3)
    other = NodeWatch({0: key, 1: ProcessKey(process.pid, ticks, 999)})
    assert other.look() == {}
    other.end()
    assert process.is_running()


def still(*processes: psutil.Process) -> list[psutil.Process]:
    """Return processes that have a number yet."""
    time.sleep(0.2)
    return [process for process in processes if process.is_running()]


def wait_for_status(process: psutil.Process, status: str | None) -> None:
    """Let a process come to where it hangs."""
    time.sleep(0.2)
    while status is not None and process.status() != status:
        time.sleep(0.01)
