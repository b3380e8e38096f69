"""What the worker processes of one node do, seen from outside; they can be signalled and ended."""

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from mindrl.observability.progress import ProgressPage, Ticks
from mindrl.platform.endings import OutOfMemoryKills

_DUMP_SECONDS = 1.0
"""A process writes its stacks within milliseconds, on a machine that is not overloaded."""
END_SECONDS = 3.0
"""Ray's request to end is obeyed at once, unless the process is stopped."""


class ProcessKey(NamedTuple):
    """A process, whoever has its number later, and its page of progress."""

    pid: int
    created: float
    page: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What is seen of a worker at one moment."""

    count: Ticks
    status: str
    """In psutil's words: `running`, `sleeping`, `stopped`."""


class NodeWatch:
    """The workers of this node, by rank."""

    def __init__(self, keys: Mapping[int, ProcessKey]) -> None:
        """Find the processes; one that has ended already is left out.

        Raises:
            PermissionError: One is another user's.
        """
        self.kills = OutOfMemoryKills.read()
        self.processes: dict[int, psutil.Process] = {}
        self.pages: dict[int, ProgressPage] = {}
        for rank, key in keys.items():
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                process = psutil.Process(key.pid)
                if process.create_time() == key.created:
                    self.pages[rank] = ProgressPage(key.pid, key.page)
                    self.processes[rank] = process

    def look(self) -> dict[int, Sight]:
        """Say what each worker does; those that are gone are left out."""
        seen = {}
        for rank, process in self.processes.items():
            with suppress(psutil.NoSuchProcess):
                seen[rank] = Sight(count=self.pages[rank].read(), status=process.status())
        return seen

    def out_of_memory(self) -> str:
        """Return what the kernel has counted of processes killed for their memory, if any."""
        return OutOfMemoryKills.read().since(self.kills)

    def dump_stacks(self) -> None:
        """Have each worker write the Python stacks of its threads into its log; takes a second.

        One that is stopped goes on, for it could not write otherwise.
        """
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR1)
                process.resume()
        time.sleep(_DUMP_SECONDS)

    def end(self) -> None:
        """Wait until the workers are gone, which have been asked to end; kill those that stay."""
        _, staying = psutil.wait_procs(list(self.processes.values()), timeout=END_SECONDS)
        for process in staying:
            with suppress(psutil.NoSuchProcess):
                for each in [*process.children(recursive=True), process]:
                    each.kill()
        psutil.wait_procs(staying, timeout=END_SECONDS)
