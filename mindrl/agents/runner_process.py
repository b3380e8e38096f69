"""The process with the agents of a run, under a guard that ends all that they have started."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket, socketpair
from threading import Thread
from typing import Any

from mindrl.agents import runner
from mindrl.errors import ConfigError
from mindrl.platform.guard import end_guarded, start_guarded

_LOAD = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
"""Unlike the file as a program, this leaves the folder of the file out of the import path."""
_STOP_SECONDS = 10.0
_SEND_SECONDS = 10.0
_KEY = "environment_config"


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """Which agent a run has, and limits of its conversations."""

    agent: str
    """Name of a function."""
    interpreter: str | None = None
    """Python that runs it; None for that of the run."""
    seconds: float = 600.0
    """Longest time of a conversation."""
    start_seconds: float = 60.0
    """Longest time of the imports."""
    conversations: int = 64
    """Most conversations of an owner at a time; the others wait."""


class RunnerProcess:
    """One process with agents; results go to `arrived`, in a thread, and None at its end."""

    def __init__(self, spec: AgentSpec, arrived: Callable[["RunnerProcess", Any], None]) -> None:
        """Start it and wait for the imports.

        Raises:
            ConfigError: The interpreter or the agent cannot be used.
        """
        python = shutil.which(spec.interpreter or sys.executable)
        if python is None:
            need = "must be the path of a Python interpreter, such as /opt/agents/bin/python"
            raise ConfigError(f"{_KEY}.interpreter={spec.interpreter!r} {need}")
        self._connection, theirs = socketpair()
        with theirs:
            descriptor, file = theirs.fileno(), str(Path(runner.__file__).resolve())
            command = [python, "-c", _LOAD, file, str(descriptor)]
            program = f"import os; os.execv({python!r}, {command!r})"
            self._process = start_guarded(program, descriptor)
        self._lines = _Lines(self._connection)
        self._connection.settimeout(spec.start_seconds)
        self.send({"agent": spec.agent, "seconds": spec.seconds})
        reply = self._first()
        if reply is None or "error" in reply:
            self.close()
            why = (reply or {}).get("error", f"{python} did not import it in time, or ended")
            raise ConfigError(f"{_KEY}.agent={spec.agent!r} cannot be used: {why}")
        # A process that is stopped must not stop the run.
        self._connection.settimeout(_SEND_SECONDS)
        Thread(target=self._read, args=(arrived,), name="agent results", daemon=True).start()

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order; a process that has ended is found by the end of its results."""
        with suppress(OSError):
            self._connection.sendall(json.dumps(order, default=str).encode() + b"\n")

    def close(self) -> None:
        """End the process and all that it has started."""
        self._connection.close()
        end_guarded(self._process, _STOP_SECONDS)

    def _first(self) -> Any:
        try:
            return self._lines.next()
        except (OSError, ValueError):
            return None

    def _read(self, arrived: Callable[["RunnerProcess", Any], None]) -> None:
        while True:
            try:
                values = self._lines.next()
            except TimeoutError:
                continue
            except (OSError, ValueError):
                values = None
            arrived(self, values)
            if values is None:
                return


class _Lines:
    """Lines of JSON from a socket."""

    def __init__(self, connection: socket) -> None:
        self._connection, self._received = connection, b""

    def next(self) -> Any:
        """Wait for a line and return its value; None at the end."""
        while b"\n" not in self._received:
            if not (more := self._connection.recv(1 << 16)):
                return None
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)
