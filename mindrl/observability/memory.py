"""Host memory of this process."""

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
