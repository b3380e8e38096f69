"""The guard: a process above another one, which ends whatever that leaves behind.

The reward service has one, whose functions may start anything, and so has an engine's server,
whose engine outlives it when it is killed. A child that starts a session of its own escapes the
signals of its process group, but not its line of descent: Linux gives a process that has lost its
parent to the nearest ancestor that asks for such, and the guard asks. So whatever is the guard's
own child, and not the process that it guards, was left.

    python -m mindrl.platform.guard [--while PID] COMMAND ...

runs a command below a guard, which ends when the process PID, its parent, is gone.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

SWEEP = signal.SIGUSR1
"""Asks the guard to kill what was left behind so far."""
_SIGNALS = (SWEEP, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)
_CALLER_CHECK_SECONDS = 0.5
_ROUND_SECONDS = 0.01
_KILL_SECONDS = 5.0
"""A process that the kernel does not let go, say of a dead network disk, is left to it."""
_END_SECONDS = 20.0
"""For a command that is asked to end, before it is killed with all below it."""


def die_with(parent_pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent_pid:  # it died before the line above
        os.kill(os.getpid(), by)


def fork_guarded(caller_pid: int, connection_descriptor: int) -> None:
    """Fork the service off this process and return in it; this process becomes its guard.

    The guard ends, with all below it, at SIGTERM, when the caller is gone, or behind the service,
    with the service's exit code.
    """
    if service_pid := _fork(signal.SIGKILL):
        os.close(connection_descriptor)
        os._exit(_Guard(service_pid, caller_pid).run())


def guard_command(command: Sequence[str], caller_pid: int | None = None) -> int:
    """Run a command below this process; returns its exit code once nothing of it is left.

    The command is asked to end by SIGTERM at SIGTERM, or when this process is killed; when there is
    a caller and it is gone, it is killed.
    """
    command_pid = _fork(signal.SIGTERM)
    if not command_pid:
        os.execvp(command[0], [*command])  # noqa: S606
    return _Guard(command_pid, caller_pid, end_seconds=_END_SECONDS).run()


def _fork(at_the_guards_end: signal.Signals) -> int:
    """Return 0 in the process that is guarded from now on, and its number in the guard."""
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
    """None where it may leave."""
    end_seconds: float = 0.0
    """For what is guarded to end by itself when it is asked to."""
    _code: int | None = None

    def run(self) -> int:
        """Wait for the end, make it everybody's, and return the exit code of what is guarded."""
        while self._code is None and self._caller_pid in (None, os.getppid()):
            arrived = signal.sigtimedwait(_SIGNALS, _CALLER_CHECK_SECONDS)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                self._ask_to_end()
                break
            if arrived is not None and arrived.si_signo == SWEEP:
                self._kill_children(but=self._guarded_pid)
            self._reap()
        self._kill_children(but=None)
        return self._code or 0

    def _ask_to_end(self) -> None:
        """Let what is guarded end by itself, if it is given time; a second SIGTERM ends that."""
        deadline = time.monotonic() + self.end_seconds
        if self.end_seconds:
            os.kill(self._guarded_pid, signal.SIGTERM)
        while self._code is None and (left := deadline - time.monotonic()) > 0:
            arrived = signal.sigtimedwait(_SIGNALS, left)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                return
            self._reap()

    def _kill_children(self, but: int | None) -> None:
        """Kill until none is left: whoever loses its parent here comes up in the next round."""
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:
            left = [child.pid for child in psutil.Process().children() if child.pid != but]
            if not left:
                return
            for pid in left:
                with suppress(PermissionError):  # it runs as somebody else by now
                    # No other process can have its number: it is for the guard to free.
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_ROUND_SECONDS)
            self._reap()

    def _reap(self) -> None:
        """Free what has ended, and note the exit code of what is guarded, as a shell says it."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._guarded_pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._code = code if code >= 0 else 128 - code


if __name__ == "__main__":
    given = sys.argv[1:]
    has_caller = given[:1] == ["--while"]
    sys.exit(guard_command(given[2:], int(given[1])) if has_caller else guard_command(given))
