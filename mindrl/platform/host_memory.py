"""What a process may have of the memory of its machine."""

from pathlib import Path

import psutil

_NO_LIMIT = 1 << 60
"""The first version of control groups writes a number near 2^63 for no limit."""


def memory_bound() -> int:
    """Return the bytes that the processes of this machine or container may have together."""
    total = psutil.virtual_memory().total
    return min(total, container_memory() or total)


def container_memory(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the least limit of the control groups that hold this process, in bytes.

    Args:
        groups: /proc/self/cgroup.
        root: Where the control groups are mounted; the second version of them, or the first.
    """
    limits = []
    for line in text_of(groups).splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers == "":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        inside = [folder for folder in (group, *group.parents) if top in (folder, *folder.parents)]
        texts = (text_of(folder / name).strip() for folder in inside)
        limits += [int(text) for text in texts if text.isdecimal()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def text_of(file: Path) -> str:
    """Return what a file holds; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
