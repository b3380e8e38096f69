"""A guard: a parent process that ends all processes which its guarded child leaves running.

The reward service has a guard because its functions may start any process. An engine's server has
one because the engine survives when the server is killed. A child that starts its own session no
longer receives the signals of its process group, but Linux reparents orphans to the nearest
ancestor that is a subreaper, which the guard is. So every child of the guard except the guarded
process is an orphan.

    python -m mindrl.platform.guard [--while PID] [--remove FOLDER] COMMAND ...

runs a command under a guard, which ends when its parent, process PID, has ended, and removes the
folder at its end.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

SWEEP = signal.SIGUSR1
"""Makes the guard kill the orphans that exist now."""
_SIGNALS = (SWEEP, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)
_CALLER_CHECK_SECONDS = 0.5
_ROUND_SECONDS = 0.01
_KILL_SECONDS = 5.0
"""Time limit of killing; a process that the kernel cannot end (on a dead network disk) is
abandoned."""
_END_SECONDS = 20.0
"""Time for a command to end after SIGTERM, before it is killed with all its descendants."""


def die_with(parent_pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent_pid:  # the parent ended before the line above
        os.kill(os.getpid(), by)


def start_guarded(program: str, *descriptors: int) -> subprocess.Popen[bytes]:
    """Start a guard, and under it a Python program that inherits descriptors; return the guard.

    The program imports from the same path as this process. It has a session of its own, which
    Ctrl-C does not reach.
    """
    lines = (
        "import sys",
        f"sys.path[:] = {import_paths()!r}",
        "from mindrl.platform.guard import fork_guarded",
        f"fork_guarded({os.getpid()}, {descriptors})",
        program,
    )
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


def fork_guarded(caller_pid: int, descriptors: Sequence[int]) -> None:
    """Fork the service from this process and return in it; this process becomes its guard.

    The guard closes the descriptors. It ends, with all its descendants, at SIGTERM, when the caller
    has ended, or after the service, with the service's exit code.
    """
    if service_pid := _fork(signal.SIGKILL):
        for descriptor in descriptors:
            os.close(descriptor)
        os._exit(_Guard(service_pid, caller_pid).run())


def import_paths() -> list[str]:
    """Return the import path of this process, for another one in any folder."""
    return [str(Path.cwd()) if path == "" else path for path in sys.path]


def end_guarded(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a guard kill all its descendants, and reap it; kill it after `seconds`.

    A second call has no effect.
    """
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def guard_command(command: Sequence[str], caller_pid: int | None = None) -> int:
    """Run a command under this process; return its exit code after all its processes have ended.

    On SIGTERM, or if this process is killed, the command receives SIGTERM. If there is a caller and
    it has ended, the command is killed.
    """
    command_pid = _fork(signal.SIGTERM)
    if not command_pid:
        os.execvp(command[0], [*command])  # noqa: S606
    return _Guard(command_pid, caller_pid, end_seconds=_END_SECONDS).run()


def _fork(at_the_guards_end: signal.Signals) -> int:
    """Return 0 in the guarded process, and its process id in the guard."""
    guard_pid = os.getpid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if guarded_pid := os.fork():
        return guarded_pid
    die_with(guard_pid, at_the_guards_end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return 0


@dataclass
class _Guard:
    _guarded_pid: int
    _caller_pid: int | None = None
    """None if the caller may end first."""
    end_seconds: float = 0.0
    """Time for the guarded process to end by itself after SIGTERM."""
    _code: int | None = None

    def run(self) -> int:
        """Wait for the end, end all descendants, and return the guarded process's exit code."""
        while self._code is None and self._caller_pid in (None, os.getppid()):
            arrived = signal.sigtimedwait(_SIGNALS, _CALLER_CHECK_SECONDS)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                self._request_end()
                break
            if arrived is not None and arrived.si_signo == SWEEP:
                self._kill_children(but=self._guarded_pid)
            self._reap()
        self._kill_children(but=None)
        return self._code or 0

    def _request_end(self) -> None:
        """Send SIGTERM and wait up to `end_seconds`; a second SIGTERM ends the wait."""
        deadline = time.monotonic() + self.end_seconds
        if self.end_seconds:
            os.kill(self._guarded_pid, signal.SIGTERM)
        while self._code is None and (left := deadline - time.monotonic()) > 0:
            arrived = signal.sigtimedwait(_SIGNALS, left)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                return
            self._reap()

    def _kill_children(self, but: int | None) -> None:
        """Kill until no child is left: processes orphaned by a kill appear in the next round."""
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:
            left = [child.pid for child in psutil.Process().children() if child.pid != but]
            if not left:
                return
            for pid in left:
                with suppress(PermissionError):  # it has changed its user
                    # The id cannot have been reused: only the guard can free it.
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_ROUND_SECONDS)
            self._reap()

    def _reap(self) -> None:
        """Reap ended children; store the guarded process's exit code as a shell reports it."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._guarded_pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._code = code if code >= 0 else 128 - code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--while", type=int, dest="caller_pid")
    parser.add_argument("--remove", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    code = guard_command(given.command, given.caller_pid)
    if given.remove is not None:
        shutil.rmtree(given.remove, ignore_errors=True)
    sys.exit(code)
