"""Identify a process, so that another one can find out whether it still runs."""

import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from mindrl.platform.endings import start_ticks


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process, identified uniquely across machines."""

    host: str
    """Host name, PID namespace and boot id of the machine, separated by blanks."""
    pid: int
    started: float = field(compare=False)
    """Seconds since the epoch, by the machine's own clock when they were noted."""
    what: str
    """Description of the process for display, such as `the train job`."""
    start_ticks: int | None = None
    """Its start in clock ticks since the boot; None in records of older versions."""

    def __str__(self) -> str:
        """Return the description, process number and host."""
        return f"{self.what}, process {self.pid} on {self.host.partition(' ')[0]}"

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; False for a process on another machine."""
        if not self.is_here:
            return False
        if self.start_ticks is not None:
            return start_ticks(self.pid) != self.start_ticks
        try:
            return psutil.Process(self.pid).create_time() != self.started
        except psutil.NoSuchProcess:
            return True

    @property
    def is_here(self) -> bool:
        """Whether this process can detect the end of that one."""
        return self.host == this_machine()

    @property
    def shares_our_kernel(self) -> bool:
        """Whether the process was started since this machine booted, perhaps in a container."""
        return self.host.rpartition(" ")[2] == this_machine().rpartition(" ")[2]


def this_process(what: str) -> Holder:
    """Return the identity of this process."""
    own = psutil.Process()
    return Holder(
        host=this_machine(),
        pid=own.pid,
        started=own.create_time(),
        what=what,
        start_ticks=start_ticks(own.pid),
    )


@cache
def this_machine() -> str:
    """Return an identifier of this machine since its last boot."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{socket.gethostname()} {namespace} {boot}"
