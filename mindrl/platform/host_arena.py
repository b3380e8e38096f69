"""The host memory of a worker: one allocation, in which each region has its place for good."""

import logging

import psutil
import torch
from torch import Tensor

from mindrl.errors import HostMemoryError
from mindrl.platform.host_facts import memory_bound

logger = logging.getLogger(__name__)

_ALIGNMENT = 512
"""Bytes; copies between device and host like round addresses."""


class HostArena:
    """Memory that copies of device memory go to; pinned where a device reads it by itself."""

    def __init__(self, nbytes: int, *, device_type: str) -> None:
        """Allocate all of it.

        Args:
            nbytes: What the regions of this worker need together.
            device_type: Of the device that copies come from.
        """
        self.device_type = device_type
        self.block = _allocate(nbytes, device_type)
        self.used = 0
        self.beyond = 0
        """Bytes that did not fit in and lie elsewhere."""

    @property
    def nbytes(self) -> int:
        """Host memory taken."""
        return len(self.block) + self.beyond

    def take(self, nbytes: int) -> Tensor:
        """Return a place of its own, uint8 [nbytes]; nobody else gets it.

        A place that the arena has no room for lies elsewhere; a warning says so with the figures.
        """
        if self.used + nbytes > len(self.block):
            logger.warning(
                "the host arena of %d bytes has no room for %d more behind %d: the plan is wrong",
                len(self.block),
                nbytes,
                self.used,
            )
            self.beyond += nbytes
            return _allocate(nbytes, self.device_type)
        place = self.block[self.used : self.used + nbytes]
        self.used += rounded(nbytes)
        return place


def require_host_memory(nbytes: int) -> None:
    """Make sure that this machine has room for the arenas of all its workers.

    Args:
        nbytes: Of all of them together, none of which is allocated yet.

    Raises:
        HostMemoryError: The host does not have it.
    """
    available = min(psutil.virtual_memory().available, memory_bound())
    if nbytes > available:
        raise HostMemoryError(
            f"what leaves the devices of this machine needs {nbytes / 2**30:.2f} GiB of host "
            f"memory, {available / 2**30:.2f} GiB are available"
        )


def rounded(nbytes: int) -> int:
    """Return the bytes of the arena that a place takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _allocate(nbytes: int, device_type: str) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device_type != "cpu")
