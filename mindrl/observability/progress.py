"""Progress of a process: its hot loops increment a counter that another process reads.

The counter is in an anonymous page of memory that is freed with the process; a process of the same
user reads it through /proc. So nothing is written to a disk, and the observed process need not
respond: it may be stopped, or hold its interpreter's lock forever.
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
STAGES = (
    "",
    "imports libraries",
    "waits for the other workers",
    "builds the models",
    "starts the engine",
)
"""Stages of a worker's start, indexed by the number in its page; empty after the start."""
_MEMORY = "/dev/shm"  # noqa: S108 - the file has no name


@dataclass(frozen=True, kw_only=True)
class Ticks:
    """Content of a page."""

    ticks: int
    """Ticks since the process started."""
    work: int
    """Ticks since the current call started."""
    is_steady: bool
    """Whether it ticks independently of other processes."""
    stage: str = ""
    """One of `STAGES`."""


class Progress:
    """Counter of a process, private until it is shared."""

    def __init__(self) -> None:
        """Start at 0."""
        self.cells = memoryview(bytearray(_BYTES)).cast("Q")
        self.thread: int | None = None
        self.waits = False
        self.stages: dict[str, float] = {}
        """Seconds of each finished stage."""
        self.entered = 0.0

    def share(self) -> int:
        """Let other processes read this thread's count; return the descriptor of the page."""
        # os.memfd_create would do the same, but some Python builds for Linux lack it.
        page = os.open(_MEMORY, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.ftruncate(page, _BYTES)
        self.cells = memoryview(mmap.mmap(page, _BYTES)).cast("Q")
        self.thread = get_ident()
        return page

    def tick(self) -> None:
        """Count one unit of work: a step, a message, a tensor. Costs a fraction of 1 us."""
        if self.thread is None or self.thread == get_ident():
            self.cells[0] += 1
        elif self.waits:
            self.cells[0] += 1
            self.cells[1] += 1

    def begin(self) -> None:
        """Count the start of a call."""
        self.tick()
        self.cells[1] = self.cells[0]

    def enter(self, stage: str) -> None:
        """Start a stage, which ends the one before; the last stage stays open."""
        before, now = STAGES[self.cells[3]], time.monotonic()
        if before:
            self.stages[before] = self.stages.get(before, 0.0) + now - self.entered
        self.cells[3], self.entered = STAGES.index(stage), now

    def done(self) -> int:
        """Return the ticks since the current call started."""
        return self.cells[0] - self.cells[1]

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Mark the body as ticking by itself: silence in it is not waiting for other processes."""
        self.cells[2] = 1
        try:
            yield
        finally:
            self.cells[2] = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count ticks of other threads in the body as progress, but not as work of the call."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


class ProgressPage:
    """The page of another process."""

    def __init__(self, pid: int, page: int) -> None:
        """Map the page; it stays readable while this object exists.

        Raises:
            OSError: The process has ended, or belongs to another user.
        """
        with Path(f"/proc/{pid}/fd/{page}").open("rb") as file:
            memory = mmap.mmap(file.fileno(), _BYTES, prot=mmap.PROT_READ)
        self.cells = memoryview(memory).cast("Q")

    def read(self) -> Ticks:
        """Return the current content."""
        ticks, begun, is_steady, stage = self.cells[:4]
        return Ticks(
            ticks=ticks, work=ticks - begun, is_steady=bool(is_steady), stage=STAGES[stage]
        )


PROGRESS = Progress()
"""The counter of this process."""
tick = PROGRESS.tick
