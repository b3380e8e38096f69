"""What a process has, and may have, of the memory of its machine, and how a worker's is cut.

Without torch, since plans count the same bytes.
"""

import re
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

GROUPS, GROUPS_ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The control groups of this process, and where they lie."""
_ALIGNMENT = 512
"""Bytes; copies between device and host like round addresses."""
_NO_LIMIT = 1 << 60
"""The first version of control groups writes a number near 2^63 for no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """Resident host memory, shared pages included."""

    rss_bytes: int
    peak_rss_bytes: int
    """Highest since the process started its program."""


def process_memory() -> ProcessMemory:
    """Measure this process."""
    # The kernel says VmHWM of the program; its getrusage, for where there is no such line, hands
    # on the peak of the process that started it.
    found = re.search(r"^VmHWM:\s*(\d+)", text_of(Path("/proc/self/status")), re.MULTILINE)
    peak_kib = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rss_bytes = psutil.Process().memory_info().rss
    # The kernel counts pages per CPU and adds up lazily; the two may be read out of step.
    return ProcessMemory(rss_bytes=rss_bytes, peak_rss_bytes=max(peak_kib << 10, rss_bytes))


def memory_bound() -> int:
    """Return the bytes that the processes of this machine or container may have together."""
    total = psutil.virtual_memory().total
    return min(total, container_memory() or total)


def container_memory(groups: Path = GROUPS, root: Path = GROUPS_ROOT) -> int | None:
    """Return the least limit of the control groups, of either version, that hold this process."""
    names = ("memory.max", "memory.limit_in_bytes")
    folders = memory_groups(groups, root)
    texts = [text_of(folder / name).strip() for folder in folders for name in names]
    limits = [int(text) for text in texts if text.isdecimal()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def memory_groups(groups: Path = GROUPS, root: Path = GROUPS_ROOT) -> list[Path]:
    """Return the folders of the control groups, of either version, that bound this process.

    Each comes before those that hold it.
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
    """Return what a file holds; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def rounded(nbytes: int) -> int:
    """Return the bytes that a place on the host takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def block_sizes(nbytes: int) -> list[int]:
    """Cut memory into powers of two, the largest first, which are no more than `rounded` together.

    The allocators of pinned memory, torch's and torch_npu's, take the next power of two for each
    block: 17.7 GiB in one would take 32.
    """
    places = rounded(nbytes) // _ALIGNMENT
    bits = reversed(range(places.bit_length()))
    return [_ALIGNMENT << bit for bit in bits if places >> bit & 1]
