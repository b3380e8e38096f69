"""The prefork server: a process that imports once what all workers need, and forks them.

Imports take most of a worker's start. The server makes them while the driver reads its data and
starts Ray; Ray then starts each worker through `platform/prefork_client.py`, which passes its
command line to the server. This module is the driver's side.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Self

from mindrl.cluster.prefork_process import ENDINGS
from mindrl.platform.device import DeviceKind
from mindrl.platform.endings import ending
from mindrl.platform.environment import in_environment, with_variables
from mindrl.platform.guard import import_paths
from mindrl.platform.prefork_client import SOCKET_VARIABLE
from mindrl.platform.scratch import Scratch

_FOLDERS = "mindrl-prefork-"
"""Prefix of folders that contain a prefork server's socket."""
_STOP_SECONDS = 5.0
_IMPORT_SECONDS = 300.0
"""Ten times the duration of the imports on a busy machine."""
_PROGRAM = "from mindrl.cluster.prefork_process import main; main()"


class PreforkServer:
    """The running server. The constructor returns immediately; the imports run in its process."""

    def __init__(
        self,
        kind: DeviceKind,
        modules: Sequence[str],
        environment: Mapping[str, str],
        *,
        megatron: bool,
    ) -> None:
        """Start it in the workers' environment; it prepares itself, then imports the modules."""
        self.environment = environment
        self.seconds: float | None = None
        """Duration of the imports; None before they are done."""
        self._scratch = Scratch.made(_FOLDERS)
        self._socket = self._scratch.folder / "socket"
        self._endings = self._scratch.folder / ENDINGS
        self._program = f"import sys; sys.path[:] = {import_paths()!r}\n{_PROGRAM}"
        self._order = (kind, megatron, ",".join(modules))
        self._lock = Lock()
        self._begin()

    def _begin(self) -> None:
        """Start the process."""
        reading, writing = os.pipe()
        order = (os.getpid(), self._socket, writing, *self._order)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._program, *map(str, order)],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A separate group, which Ctrl-C does not reach.
                process_group=0,
                env=with_variables(self.environment),
            )
        finally:
            os.close(writing)
        self._answer = os.fdopen(reading)

    def __enter__(self) -> Self:
        """Return the server; it ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    def wait(self) -> None:
        """Wait until all is imported, or the server has ended: workers then do their own imports.

        A hung server is killed.
        """
        if self.seconds is not None:
            return
        ready, _, _ = select.select([self._answer], [], [], _IMPORT_SECONDS)
        if not ready:
            self._process.kill()
        if said := self._answer.readline():
            self.seconds = float(said)

    def revived(self) -> str | None:
        """Restart it if it has ended after its start; return how it ended, None if it runs.

        Returns when all is imported. Thread-safe: replicas start in parallel on their own threads.
        """
        with self._lock:
            code = self._process.poll()
            if code is None or self.seconds is None:
                return None
            self._answer.close()
            self._socket.unlink(missing_ok=True)
            self.seconds = None
            self._begin()
            self.wait()
            return ending(code)

    def ending_of(self, pid: int) -> str | None:
        """Return how a worker forked by the prefork server ended; None if unknown."""
        with suppress(OSError):
            lines = [line.split() for line in self._endings.read_text("ascii").splitlines()]
            codes = [int(code) for number, code in lines if int(number) == pid]
            # A process id may have been reused: the last entry counts.
            return ending(codes[-1]) if codes else None
        return None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let a cluster started in the body fork its workers, in their environment."""
        with in_environment({**self.environment, SOCKET_VARIABLE: str(self._socket)}):
            yield

    def stop(self) -> None:
        """End it; workers that it has forked keep running."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._answer.close()
        self._scratch.close()
