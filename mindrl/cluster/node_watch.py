"""Observes, signals and ends the worker processes of one node from outside."""

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from mindrl.observability.progress import ProgressPage, Ticks
from mindrl.platform.endings import OutOfMemoryKills, start_ticks

_DUMP_SECONDS = 1.0
"""A process writes its stacks within milliseconds, unless the machine is overloaded."""
END_SECONDS = 3.0
"""Ray's request to end takes effect immediately, unless the process is stopped."""


class ProcessKey(NamedTuple):
    """Identifies a process even if its id is reused, and its page of progress."""

    pid: int
    start_ticks: int | None
    """Of `platform.endings`."""
    page: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Observation of a worker at one moment."""

    count: Ticks
    status: str
    """psutil's status: `running`, `sleeping`, `stopped`."""


class NodeWatch:
    """Workers of this node, by rank."""

    def __init__(self, keys: Mapping[int, ProcessKey]) -> None:
        """Find the processes; those that have ended are left out.

        Raises:
            PermissionError: One belongs to another user.
        """
        self.kills = OutOfMemoryKills.read()
        self.processes: dict[int, psutil.Process] = {}
        self.pages: dict[int, ProgressPage] = {}
        for rank, key in keys.items():
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                process = psutil.Process(key.pid)
                if start_ticks(key.pid) == key.start_ticks:
                    self.pages[rank] = ProgressPage(key.pid, key.page)
                    self.processes[rank] = process

    def look(self) -> dict[int, Sight]:
        """Return each worker's observation; those that have ended are left out."""
        seen = {}
        for rank, process in self.processes.items():
            with suppress(psutil.NoSuchProcess):
                seen[rank] = Sight(count=self.pages[rank].read(), status=process.status())
        return seen

    def out_of_memory(self) -> str:
        """Return the kernel's count of processes killed for lack of memory, if any."""
        return OutOfMemoryKills.read().since(self.kills)

    def dump_stacks(self) -> None:
        """Let each worker write the Python stacks of its threads to its log; takes a second.

        A stopped worker is resumed, since it could not write otherwise.
        """
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR1)
                process.resume()
        time.sleep(_DUMP_SECONDS)

    def end(self) -> None:
        """Wait for the workers, which were asked to end; kill the remaining ones."""
        _, staying = psutil.wait_procs(list(self.processes.values()), timeout=END_SECONDS)
        for process in staying:
            with suppress(psutil.NoSuchProcess):
                for each in [*process.children(recursive=True), process]:
                    each.kill()
        psutil.wait_procs(staying, timeout=END_SECONDS)
