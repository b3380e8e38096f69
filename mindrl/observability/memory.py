"""Host memory of this process."""

import ctypes
import gc
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """Resident host memory, shared pages included."""

    rss_bytes: int
    peak_rss_bytes: int
    """Highest since the process started its program."""


def process_memory() -> ProcessMemory:
    """Measure this process."""
    peak_bytes = _peak_rss_bytes()
    rss_bytes = psutil.Process().memory_info().rss
    # The kernel counts pages per CPU and adds up lazily; the two may be read out of step.
    return ProcessMemory(rss_bytes=rss_bytes, peak_rss_bytes=max(peak_bytes, rss_bytes))


def release_free_heap() -> None:
    """Collect garbage and hand the C heap's free pages back to the operating system.

    glibc keeps freed blocks below a live one; after weights were moved out of the heap that
    can be gigabytes. On another libc only the garbage is collected.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _peak_rss_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            # getrusage's peak is not used here: on Linux a new program inherits the peak of
            # the process that started it.
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
