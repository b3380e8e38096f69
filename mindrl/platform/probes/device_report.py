"""What a vendor's tool says of the devices of this machine, as data."""

import shutil
import subprocess
from dataclasses import dataclass

_TOOL_SECONDS = 60
"""A healthy tool answers in a few seconds; with a lost device it may never."""
HEALTHY = "OK"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device."""

    index: int
    """As the variable of the visible devices counts."""
    name: str
    health: str
    """`HEALTHY`, or what is wrong in the words of the tool."""
    total_mib: int
    used_mib: int
    processes: tuple[int, ...] = ()
    """That hold memory of it; empty too where the tool does not see them."""


@dataclass(frozen=True)
class Component:
    """Software of the vendor that pip does not install."""

    name: str
    version: str | None
    """None where it was not found."""
    needed: str | None
    """The version that mindrl was read against; None where any will do."""
    advice: str


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """All devices of one kind."""

    tool: str
    """Command that was asked; empty where the kind has none."""
    devices: tuple[Device, ...] = ()
    error: str = ""
    """Why the tool gave no answer."""
    advice: str = ""
    """What to do then."""
    components: tuple[Component, ...] = ()


def answer_of(*command: str) -> tuple[str, str]:
    """Run a vendor's tool; return what it printed, and an error where it gave no answer."""
    program = shutil.which(command[0])
    if program is None:
        return "", "not on the PATH"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer in {_TOOL_SECONDS} s"
    except OSError as error:
        return "", str(error)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        return "", f"exit code {done.returncode}: {words[-1] if words else 'no words'}"
    return done.stdout, ""
