"""The guard: the process above the reward service, which kills what reward functions leave behind.

A child that starts a session of its own escapes the signals of its process group, but not its
line of descent: Linux gives a process that has lost its parent to the nearest ancestor that asks
for such, and the guard asks. So whatever is the guard's own child, and not the service, was left.
"""

import ctypes
import os
import signal
import time
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


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def fork_guarded(caller_pid: int, connection_descriptor: int) -> None:
    """Fork the service off this process and return in it; this process becomes its guard.

    The guard ends, with all below it, at SIGTERM, when the caller is gone, or behind the service,
    with the service's exit code.
    """
    guard_pid = os.getpid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    service_pid = os.fork()
    if service_pid:
        os.close(connection_descriptor)
        os._exit(_Guard(service_pid).run(caller_pid))
    die_with(guard_pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@dataclass
class _Guard:
    _service_pid: int
    _service_code: int | None = None

    def run(self, caller_pid: int) -> int:
        """Wait for the end, make it everybody's, and return the service's exit code."""
        while self._service_code is None and os.getppid() == caller_pid:
            arrived = signal.sigtimedwait(_SIGNALS, _CALLER_CHECK_SECONDS)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                break
            if arrived is not None and arrived.si_signo == SWEEP:
                self._kill_children(but=self._service_pid)
            self._reap()
        self._kill_children(but=None)
        return self._service_code or 0

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
        """Free what has ended, and note the service's exit code as a shell would say it."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._service_pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._service_code = code if code >= 0 else 128 - code
