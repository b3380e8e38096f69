"""When a process started, how it ended, and whether the kernel killed some for lack of memory."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mindrl.platform.host_memory import GROUPS, GROUPS_ROOT, memory_bound, memory_groups, text_of

_KERNEL_COUNTS = Path("/proc/vmstat")
_GROUP_FILES = ("memory.events", "memory.oom_control")
"""Names in version 2 and version 1 of control groups."""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in the kernel's clock ticks since the boot.

    Steps of the wall clock do not change it, unlike psutil's `create_time`. None if there is no
    such process.
    """
    values = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(values[19]) if values else None


def ending(code: int) -> str:
    """Return how a process ended, from its exit code in the convention of `subprocess`."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def ending_of_child(pid: int) -> str:
    """Return how a child of this process ended, and leave its exit code to its parent.

    A process that is no child, or that was waited for already, is only known to be gone.
    """
    with suppress(ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            is_exit = found.si_code == os.CLD_EXITED
            return ending(found.si_status if is_exit else -found.si_status)
    return "is gone"


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryKills:
    """Counters of the processes that the kernel killed for lack of memory, by file."""

    counts: Mapping[Path, int]

    @classmethod
    def read(
        cls, groups: Path = GROUPS, root: Path = GROUPS_ROOT, kernel: Path = _KERNEL_COUNTS
    ) -> Self:
        """Read the counts of the control groups of this process, and of the kernel."""
        files = [folder / name for folder in memory_groups(groups, root) for name in _GROUP_FILES]
        found = {file: _kills(file) for file in (*files, kernel)}
        return cls(counts={file: kills for file, kills in found.items() if kills is not None})

    def since(self, before: Self) -> str:
        """Return a message from the first file whose count has increased; empty if none has."""
        for file, kills in self.counts.items():
            more = kills - before.counts.get(file, kills)
            if more > 0:
                return (
                    f"out of memory: the kernel killed {more} process(es) during this time "
                    f"(oom_kill in {file}); the memory limit is {memory_bound() / 2**30:.1f} GiB"
                )
        return ""


def _kills(file: Path) -> int | None:
    for line in text_of(file).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdecimal():
            return int(count)
    return None
