"""A worker's host memory: allocated once, with a fixed place for each region."""

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
    """Host memory for the bytes of one storage; several parts if it crosses blocks."""

    parts: tuple[Tensor, ...]
    """uint8, each contiguous."""

    def read(self, start: int, stop: int) -> Tensor:
        """Return bytes `start` to `stop`: a view, or a copy if they span several parts."""
        found, first = [], 0
        for part in self.parts:
            found.append(part[max(0, start - first) : max(0, stop - first)])
            first += len(part)
        found = [piece for piece in found if len(piece)]
        return found[0] if len(found) == 1 else torch.cat(found)


class HostArena:
    """Host memory for copies of device memory; pinned unless the device is the CPU."""

    def __init__(self, nbytes: int, *, device_type: str) -> None:
        """Allocate `nbytes`, the total of all regions of this worker."""
        self.device_type = device_type
        self.free: deque[Tensor] = deque()
        self.nbytes = 0
        """Host memory allocated."""
        self.used = 0
        self.beyond = 0
        """Bytes added after the initial allocation."""
        self._grow(nbytes)

    def take(self, nbytes: int) -> HostPlace:
        """Return an exclusive place of `nbytes`.

        If the arena is full it grows and logs a warning with the sizes.
        """
        lacking = self.used + rounded(nbytes) - self.nbytes
        if lacking > 0:
            logger.warning(
                "the host arena of %d bytes cannot hold %d bytes more than the %d in use: the "
                "memory plan is too low",
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
    """Check that this machine has room for all arenas of its workers, before any is allocated.

    Raises:
        HostMemoryError: The host has too little memory.
    """
    available = min(psutil.virtual_memory().available, memory_bound())
    if nbytes > available:
        raise HostMemoryError(
            f"offloading the devices of this machine needs {nbytes / 2**30:.2f} GiB of host "
            f"memory; {available / 2**30:.2f} GiB are available"
        )
