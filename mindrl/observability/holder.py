"""Identify a process, so that another one can find out whether it still runs."""

import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process, distinct from all others on all machines."""

    host: str
    """Host name, namespace of process numbers and boot of the machine, with blanks between them."""
    pid: int
    started: float
    """Seconds since the epoch, by the machine's own clock."""
    what: str
    """The process for people, such as `the train job`."""

    def __str__(self) -> str:
        """Name the process to a person."""
        return f"{self.what}, process {self.pid} on {self.host.partition(' ')[0]}"

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; of another machine nothing is known."""
        if not self.is_here:
            return False
        try:
            return psutil.Process(self.pid).create_time() != self.started
        except psutil.NoSuchProcess:
            return True

    @property
    def is_here(self) -> bool:
        """Whether this process can see if that one has ended."""
        return self.host == this_machine()

    @property
    def shares_our_kernel(self) -> bool:
        """Whether the process was started since this machine booted, perhaps in a container."""
        return self.host.rpartition(" ")[2] == this_machine().rpartition(" ")[2]


def this_process(what: str) -> Holder:
    """Return the identity of this process."""
    own = psutil.Process()
    return Holder(host=this_machine(), pid=own.pid, started=own.create_time(), what=what)


@cache
def this_machine() -> str:
    """Return what tells this machine from others, and from itself before it was booted."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{socket.gethostname()} {namespace} {boot}"
