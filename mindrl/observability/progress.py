"""Whether a process gets on: its hot loops tick, and another process reads the count.

The count lies in a page of memory without a name, which goes with the process; a process of the
same user reads it through /proc. So nothing is written to a disk, and nothing is asked of a
process that may be stopped, or hold its interpreter's lock for ever.
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

_BYTES = mmap.PAGESIZE
STAGES = ("", "imports libraries", "meets the others", "builds the models", "starts the engine")
"""What a worker does before it is there, by the number in its page; nothing is behind it."""
_MEMORY = "/dev/shm"  # noqa: S108 - what is made there has no name


@dataclass(frozen=True, kw_only=True)
class Ticks:
    """What a page says."""

    ticks: int
    """Since the process began."""
    work: int
    """Since the call began that it is in."""
    is_steady: bool
    """It ticks by itself, whatever other processes do."""
    stage: str = ""
    """Of `STAGES`."""


class Progress:
    """The count of a process, which nobody else sees before it is shared."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.cells = memoryview(bytearray(_BYTES)).cast("Q")
        self.thread: int | None = None
        self.waits = False
        self.stages: dict[str, float] = {}
        """Seconds of each stage that is over."""
        self.entered = 0.0

    def share(self) -> int:
        """Let other processes read the count of this thread; returns the descriptor of its page."""
        # Not every Python for Linux has os.memfd_create, which would do the same.
        page = os.open(_MEMORY, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.ftruncate(page, _BYTES)
        self.cells = memoryview(mmap.mmap(page, _BYTES)).cast("Q")
        self.thread = get_ident()
        return page

    def tick(self) -> None:
        """Count one more thing done: a step, a message, a tensor. Costs a fraction of 1 us."""
        if self.thread is None or self.thread == get_ident():
            self.cells[0] += 1
        elif self.waits:
            self.cells[0] += 1
            self.cells[1] += 1

    def begin(self) -> None:
        """Count the beginning of a call."""
        self.tick()
        self.cells[1] = self.cells[0]

    def enter(self, stage: str) -> None:
        """Begin a stage, which ends the one before; nothing ends the last."""
        before, now = STAGES[self.cells[3]], time.monotonic()
        if before:
            self.stages[before] = self.stages.get(before, 0.0) + now - self.entered
        self.cells[3], self.entered = STAGES.index(stage), now

    def done(self) -> int:
        """Return the ticks since the call began."""
        return self.cells[0] - self.cells[1]

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Tick by itself for a while: silence is then no waiting for others who get on."""
        self.cells[2] = 1
        try:
            yield
        finally:
            self.cells[2] = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Take what other threads do for progress, if not for work of the call."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


class ProgressPage:
    """The page of another process."""

    def __init__(self, pid: int, page: int) -> None:
        """Open it; it can be read for as long as this object is there.

        Raises:
            OSError: The process is gone, or of another user.
        """
        with Path(f"/proc/{pid}/fd/{page}").open("rb") as file:
            memory = mmap.mmap(file.fileno(), _BYTES, prot=mmap.PROT_READ)
        self.cells = memoryview(memory).cast("Q")

    def read(self) -> Ticks:
        """Return what it says now."""
        ticks, begun, is_steady, stage = self.cells[:4]
        return Ticks(
            ticks=ticks, work=ticks - begun, is_steady=bool(is_steady), stage=STAGES[stage]
        )


PROGRESS = Progress()
"""Of this process."""
tick = PROGRESS.tick
