"""The stem: a process that imports once what all workers of a machine need, and forks them.

Imports are most of what a worker does before it is ready. The stem makes them while the driver
reads its data and starts Ray; Ray then starts each worker by `platform/stem_shoot.py`, which hands
its command line over to the stem. The driver's end is here.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Self

from mindrl.cluster.stem_process import ENDINGS
from mindrl.platform.device import DeviceKind
from mindrl.platform.endings import ending
from mindrl.platform.environment import in_environment, with_variables
from mindrl.platform.scratch import Scratch
from mindrl.platform.stem_shoot import STEM

_FOLDERS = "mindrl-stem-"
"""Beginning of the names of folders that hold a stem's socket."""
_STOP_SECONDS = 5.0
_IMPORT_SECONDS = 300.0
"""Ten times what the imports take on a busy machine."""
_PROGRAM = "from mindrl.cluster.stem_process import main; main()"


class Stem:
    """One running stem. Its constructor returns at once; the imports go on over there."""

    def __init__(
        self,
        kind: DeviceKind,
        modules: Sequence[str],
        environment: Mapping[str, str],
        *,
        megatron: bool,
    ) -> None:
        """Start it with the environment of workers; modules are imported once it is prepared."""
        self.environment = environment
        self.seconds: float | None = None
        """What the imports took; None where they are not done."""
        self._scratch = Scratch.made(_FOLDERS)
        self._socket = self._scratch.folder / "socket"
        self._endings = self._scratch.folder / ENDINGS
        paths = [str(Path.cwd()) if path == "" else path for path in sys.path]
        self._program = f"import sys; sys.path[:] = {paths!r}\n{_PROGRAM}"
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
                # A group of its own, which Ctrl-C does not reach.
                process_group=0,
                env=with_variables(self.environment),
            )
        finally:
            os.close(writing)
        self._answer = os.fdopen(reading)

    def __enter__(self) -> Self:
        """Return it; it ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def wait(self) -> None:
        """Wait until all is imported, or the stem has ended instead: workers import then.

        One that hangs is ended.
        """
        if self.seconds is not None:
            return
        ready, _, _ = select.select([self._answer], [], [], _IMPORT_SECONDS)
        if not ready:
            self._process.kill()
        if said := self._answer.readline():
            self.seconds = float(said)

    def revived(self) -> str | None:
        """Start it again if it was up and has ended; returns how it ended, None if it has not.

        Returns once all is imported. Replicas that start side by side ask on threads of their own.
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
        """Return how a worker that the stem has forked ended; None if that is not known."""
        with suppress(OSError):
            lines = [line.split() for line in self._endings.read_text("ascii").splitlines()]
            codes = [int(code) for number, code in lines if int(number) == pid]
            # A number may have been given out again: the last one is meant.
            return ending(codes[-1]) if codes else None
        return None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Have workers forked in a cluster that is started meanwhile, in their environment."""
        with in_environment({**self.environment, STEM: str(self._socket)}):
            yield

    def stop(self) -> None:
        """End it; workers that it has forked live on."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._answer.close()
        self._scratch.close()
