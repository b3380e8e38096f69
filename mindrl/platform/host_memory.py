"""Memory use and limits of a process, and the block sizes of a worker's host memory.

Imports no torch, since plans count the same bytes.
"""

import re
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

GROUPS, GROUPS_ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The control groups of this process, and the root of their file system."""
_ALIGNMENT = 512
"""Bytes; copies between device and host are fast at aligned addresses."""
_NO_LIMIT = 1 << 60
"""Version 1 of control groups writes a number near 2^63 for no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """Resident host memory, shared pages included."""

    rss_bytes: int
    peak_rss_bytes: int
    """Peak since the process started its program."""


def process_memory() -> ProcessMemory:
    """Return the memory use of this process."""
    # VmHWM counts this program only. getrusage, the fallback, inherits the peak of the process that
    # started it.
    found = re.search(r"^VmHWM:\s*(\d+)", text_of(Path("/proc/self/status")), re.MULTILINE)
    peak_kib = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rss_bytes = psutil.Process().memory_info().rss
    # The kernel counts pages per CPU and adds up lazily; the two may be read out of step.
    return ProcessMemory(rss_bytes=rss_bytes, peak_rss_bytes=max(peak_kib << 10, rss_bytes))


def memory_bound() -> int:
    """Return the bytes that all processes of this machine or container may use together."""
    total = psutil.virtual_memory().total
    return min(total, container_memory() or total)


def container_memory(groups: Path = GROUPS, root: Path = GROUPS_ROOT) -> int | None:
    """Return the smallest limit of the control groups, of either version, of this process."""
    names = ("memory.max", "memory.limit_in_bytes")
    folders = memory_groups(groups, root)
    texts = [text_of(folder / name).strip() for folder in folders for name in names]
    limits = [int(text) for text in texts if text.isdecimal()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def memory_groups(groups: Path = GROUPS, root: Path = GROUPS_ROOT) -> list[Path]:
    """Return the folders of the control groups, of either version, that limit this process.

    Each comes before its parents.
    """
    found: list[Path] = []
    for line in text_of(groups).splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        group = top / path.strip("/")
        found += [each for each in (group, *group.parents) if top in (each, *each.parents)]
    return found


def text_of(file: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def rounded(nbytes: int) -> int:
    """Return the bytes that a place occupies on the host."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def block_sizes(nbytes: int) -> list[int]:
    """Split memory into powers of two, largest first, whose sum is `rounded(nbytes)`.

    The allocators of pinned memory in torch and torch_npu round each block up to a power of two:
    17.7 GiB in one block would use 32.
    """
    places = rounded(nbytes) // _ALIGNMENT
    bits = reversed(range(places.bit_length()))
    return [_ALIGNMENT << bit for bit in bits if places >> bit & 1]
