"""The host memory of a worker, taken at once, in which each region has its place for good."""

import logging
from collections import deque
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from mindrl.errors import HostMemoryError
from mindrl.platform.host_memory import block_sizes, memory_bound, rounded

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HostPlace:
    """Room for the bytes of one storage; in several parts where a block ended."""

    parts: tuple[Tensor, ...]
    """uint8, each in one run of memory."""

    def read(self, start: int, stop: int) -> Tensor:
        """Return some of the bytes: as they lie there, or, of several parts, a copy."""
        found, first = [], 0
        for part in self.parts:
            found.append(part[max(0, start - first) : max(0, stop - first)])
            first += len(part)
        found = [piece for piece in found if len(piece)]
        return found[0] if len(found) == 1 else torch.cat(found)


class HostArena:
    """Memory that copies of device memory go to; pinned where a device reads it by itself."""

    def __init__(self, nbytes: int, *, device_type: str) -> None:
        """Allocate all that the regions of this worker need together, for copies from a device."""
        self.device_type = device_type
        self.free: deque[Tensor] = deque()
        self.nbytes = 0
        """Host memory taken."""
        self.used = 0
        self.beyond = 0
        """Bytes that had to be added."""
        self._grow(nbytes)

    def take(self, nbytes: int) -> HostPlace:
        """Return a place of its own; nobody else gets it.

        Where there is no room the arena grows; a warning says so with the figures.
        """
        lacking = self.used + rounded(nbytes) - self.nbytes
        if lacking > 0:
            logger.warning(
                "the host arena of %d bytes has no room for %d more behind %d: the plan is wrong",
                self.nbytes,
                nbytes,
                self.used,
            )
            self._grow(lacking)
            self.beyond += lacking
        self.used += rounded(nbytes)
        parts = []
        while nbytes:
            block = self.free.popleft()
            part, rest = block[:nbytes], block[rounded(nbytes) :]
            if len(rest):
                self.free.appendleft(rest)
            parts.append(part)
            nbytes -= len(part)
        return HostPlace(parts=tuple(parts))

    def _grow(self, nbytes: int) -> None:
        for size in block_sizes(nbytes):
            pinned = self.device_type != "cpu"
            self.free.append(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))
            self.nbytes += size


def require_host_memory(nbytes: int) -> None:
    """Make sure that this machine has room for all arenas of its workers, none of them allocated.

    Raises:
        HostMemoryError: The host does not have it.
    """
    available = min(psutil.virtual_memory().available, memory_bound())
    if nbytes > available:
        raise HostMemoryError(
            f"what leaves the devices of this machine needs {nbytes / 2**30:.2f} GiB of host "
            f"memory, {available / 2**30:.2f} GiB are available"
        )
