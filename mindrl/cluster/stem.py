"""The stem: a process that imports once what all workers of a machine need, and forks them.

Imports are most of what a worker does before it is ready. The stem makes them while the driver
reads its data and starts Ray; Ray then starts each worker by `platform/stem_shoot.py`, which hands
its command line over to the stem. The driver's end is here.
"""

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from mindrl.platform.device import DeviceKind
from mindrl.platform.environment import in_environment, with_variables
from mindrl.platform.stem_shoot import STEM

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
        self._folder = Path(tempfile.mkdtemp(prefix="mindrl-stem-"))
        self._socket = self._folder / "socket"
        reading, writing = os.pipe()
        paths = [str(Path.cwd()) if path == "" else path for path in sys.path]
        program = f"import sys; sys.path[:] = {paths!r}\n{_PROGRAM}"
        order = (os.getpid(), self._socket, writing, kind, megatron, ",".join(modules))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, *map(str, order)],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A group of its own, which Ctrl-C does not reach.
                process_group=0,
                env=with_variables(environment),
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
        shutil.rmtree(self._folder, ignore_errors=True)
