"""A command below a guard leaves no processes, whichever of the two is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_ENGINE = "import time; time.sleep(120)"
_SERVER = """
import signal, subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
def end(*_):
    engine.terminate()
    open(sys.argv[2], "w").write("ended in order")
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print(engine.pid, flush=True)
time.sleep(120)
"""


class Started:
    """A guard, its server, and the engine that the server has started in a session of its own."""

    def __init__(self, note: Path) -> None:
        command = [sys.executable, "-m", "mindrl.platform.guard"]
        command += [sys.executable, "-c", _SERVER, _ENGINE, str(note)]
        self.guard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.guard.stdout is not None
        self.engine = psutil.Process(int(self.guard.stdout.readline()))
        (self.server,) = psutil.Process(self.guard.pid).children()

    def wait_until_all_is_gone(self) -> None:
        ends = time.monotonic() + 20
        while any(each.is_running() for each in (self.server, self.engine)):
            assert time.monotonic() < ends, "something was left behind"
            time.sleep(0.02)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    found = Started(tmp_path / "note")
    yield found
    found.guard.kill()
    found.guard.wait()
    assert found.guard.stdout is not None
    found.guard.stdout.close()


def test_the_engine_of_a_server_that_was_killed_ends_with_it(started: Started) -> None:
    os.kill(started.server.pid, signal.SIGKILL)
    assert started.guard.wait(timeout=20) == 128 + signal.SIGKILL
    started.wait_until_all_is_gone()


def test_a_server_ends_in_order_when_its_guard_is_asked_to(
    started: Started, tmp_path: Path
) -> None:
    started.guard.terminate()
    assert started.guard.wait(timeout=20) == 7
    started.wait_until_all_is_gone()
    assert (tmp_path / "note").read_text() == "ended in order"


def test_a_server_ends_in_order_when_its_guard_is_killed(started: Started, tmp_path: Path) -> None:
    started.guard.kill()
    started.wait_until_all_is_gone()
    assert (tmp_path / "note").read_text() == "ended in order"


def test_a_command_ends_with_the_caller_that_it_is_guarded_for() -> None:
    # The caller is a process that starts the guard, says who that is, and is killed.
    script = (
        "import os, subprocess, sys, time\n"
        "guard = [sys.executable, '-m', 'mindrl.platform.guard', '--while', str(os.getpid())]\n"
        "process = subprocess.Popen([*guard, sys.executable, '-c', sys.argv[1]])\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    command = [sys.executable, "-c", script, _ENGINE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        guard = psutil.Process(int(caller.stdout.readline()))
        ends = time.monotonic() + 20
        while not (below := guard.children()):
            assert time.monotonic() < ends
        caller.kill()
    assert not psutil.wait_procs([guard, *below], timeout=20)[1]


def test_a_guard_removes_a_folder_at_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    (folder / "server.token").write_text("secret")
    guard = [sys.executable, "-m", "mindrl.platform.guard", "--remove", str(folder)]
    command = [sys.executable, "-c", "import sys; sys.exit(7)", "--remove", str(tmp_path)]
    assert subprocess.run([*guard, *command], check=False).returncode == 7
    assert [*tmp_path.iterdir()] == []
