"""Calls of Ray end with a signal, or with Ray's own processes; these are stood for by real ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from mindrl.cluster.ray_calls import RayCalls, RayProcess
from mindrl.errors import WorkerDiedError

Watched = tuple[RayCalls, subprocess.Popen[bytes]]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Calls that watch one process, with a second of patience."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    calls = RayCalls(1)
    calls.processes = [RayProcess("raylet", psutil.Process(process.pid))]
    yield calls, process
    process.kill()
    process.wait()


def test_a_call_returns_or_raises_what_the_function_does() -> None:
    calls = RayCalls(600)
    assert calls(pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        calls(divmod, 1, 0)
    # One thread makes the calls of another.
    assert calls(threading.get_ident) == calls(threading.get_ident) != threading.get_ident()


def test_the_thread_that_makes_calls_ends_with_the_one_it_makes_them_for() -> None:
    calls, made = RayCalls(600), list[int]()
    for _ in range(20):
        caller = threading.Thread(target=lambda: made.append(calls(threading.get_ident)))
        caller.start()
        caller.join()
    assert len(made) == 20
    end = time.monotonic() + 10
    while {each.ident for each in threading.enumerate()} & {*made}:
        assert time.monotonic() < end, "threads are left"
        time.sleep(0.01)


def test_a_process_that_is_gone_is_named_with_its_end_before_the_next_call(
    watched: Watched,
) -> None:
    calls, process = watched
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    made: list[int] = []
    with pytest.raises(WorkerDiedError) as caught:
        calls(made.append, 1)
    assert str(caught.value) == (
        f"Ray's process raylet ({process.pid} on this machine) was killed by SIGKILL"
    )
    assert made == []


def test_a_call_is_given_up_when_the_process_was_stopped_for_too_long(watched: Watched) -> None:
    calls, process = watched
    answer = threading.Event()
    # The first call may already see that the process is stopped.
    began = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    assert calls(int, "7") == 7
    with pytest.raises(WorkerDiedError) as caught:
        calls(answer.wait)
    assert 1 <= time.monotonic() - began < 30
    assert str(caught.value) == (
        f"Ray's process raylet ({process.pid} on this machine) was suspended by a signal "
        "for 1 s (rl_config.heartbeat_timeout_seconds)"
    )
    # The thread that still waits is not asked again.
    assert calls.within(5, int, "7") == 7
    answer.set()
    calls.wake()
    assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    assert calls.lost() is None


def test_a_stopped_process_is_lost_at_once_where_that_is_asked(watched: Watched) -> None:
    calls, process = watched
    assert calls.lost(at_once=True) is None
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while calls.lost(at_once=True) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "was suspended by a signal" in str(calls.lost(at_once=True))


def test_a_run_that_was_asked_to_stop_does_not_wait_long_for_an_answer() -> None:
    calls = RayCalls(600)
    calls.is_hurried = lambda: True
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"^Ray did not respond for 5 s$"):
        calls(threading.Event().wait)
    assert time.monotonic() - began < 60


def test_a_signal_ends_the_wait_for_a_call_that_never_returns() -> None:
    class AskedError(Exception):
        pass

    def ask(*_: Any) -> None:
        raise AskedError

    before = signal.signal(signal.SIGUSR2, ask)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    try:
        with pytest.raises(AskedError):
            RayCalls(600)(threading.Event().wait)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)


def test_the_head_of_a_joined_cluster_that_refuses_connections_is_lost_in_time() -> None:
    calls = RayCalls(1)
    # Nothing listens at this port.
    calls.head = ("127.0.0.1", 9)
    deadline = time.monotonic() + 30
    while (why := calls.lost()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert str(why).startswith("cannot reach the head of the Ray cluster at 127.0.0.1:9: ")
