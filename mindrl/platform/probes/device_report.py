"""Devices and driver of this machine, as reported by npu-smi or nvidia-smi."""

import csv
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindrl.platform.host_memory import text_of
from mindrl.platform.npu_versions import CANN_VERSION

_TOOL_SECONDS = 60
"""A healthy tool answers in a few seconds; with a lost device it may hang."""
HEALTHY = "OK"
_INSTALLED = "/usr/local/Ascend"
_BY_HAND = "run it by hand: the driver is not loaded, or this user may not open the devices"

# Two lines for each die, `NPU Name | Health | ...` above `Chip Phy-ID | Bus-Id | ...`, then a
# second table of processes. Cards with one die have no Phy-ID; there the NPU number counts. The
# last pair of numbers is the memory, on a 310P too.
_DIE = re.compile(
    r"^ *\| *(\d+) +(\S+) *\| *([A-Za-z]+) *\|[^|\n]*\| *\n"
    r" *\| *(\d+)(?: +(\d+))? *\| *[0-9A-Fa-f]+:\S+ *\|[^|\n]*?(\d+) */ *(\d+) *\| *$",
    re.MULTILINE,
)
_PROCESS = re.compile(r"^ *\| *(\d+) +(\d+) *\| *(\d+) *\|[^|\n]*\|[^|\n]*\| *$", re.MULTILINE)

_DEVICE_FIELDS = (
    "index,uuid,name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"
)
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device."""

    index: int
    """Index in the variable of visible devices."""
    name: str
    health: str
    """`HEALTHY`, or the problem as the tool names it."""
    total_mib: int
    used_mib: int
    processes: tuple[int, ...] = ()
    """Processes that use its memory; also empty if the tool cannot see them."""


@dataclass(frozen=True)
class Component:
    """Vendor software that pip does not install."""

    name: str
    version: str | None
    """None if it was not found."""
    needed: str | None
    """Version that mindrl was checked against; None if any will do."""
    advice: str


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """All devices of one kind."""

    tool: str
    """Command that was run; empty if the kind has none."""
    devices: tuple[Device, ...] = ()
    error: str = ""
    """Why the tool gave no answer."""
    advice: str = ""
    """What to do about the error."""
    components: tuple[Component, ...] = ()


def answer_of(*command: str) -> tuple[str, str]:
    """Run a vendor's tool; return its output and, if it failed, an error."""
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
        return "", f"exit code {done.returncode}: {words[-1] if words else 'no output'}"
    return done.stdout, ""


def parse_npu_smi(text: str) -> tuple[Device, ...]:
    """Parse the tables of `npu-smi info`."""
    processes: defaultdict[tuple[str, str], tuple[int, ...]] = defaultdict(tuple)
    for npu, chip, process in _PROCESS.findall(text):
        processes[npu, chip] += (int(process),)
    return tuple(
        Device(
            index=int(physical or npu),
            name=name,
            health=health,
            total_mib=int(total),
            used_mib=int(used),
            processes=processes[npu, chip],
        )
        for npu, name, health, chip, physical, used, total in _DIE.findall(text)
    )


def npu_report(environment: Mapping[str, str]) -> DeviceReport:
    """Run npu-smi and read the version files of the driver and of CANN."""
    # Same variable as in the launch scripts.
    installed = Path(environment.get("ASCEND_INSTALL_DIR") or _INSTALLED)
    text, error = answer_of("npu-smi", "info")
    devices = parse_npu_smi(text)
    scripts = {
        "ASCEND_HOME_PATH": f"source set_env.sh of CANN in {installed}; the engine reads it",
        "ATB_HOME_PATH": f"source {installed}/nnal/atb/set_env.sh; the engine's kernels require it",
    }
    return DeviceReport(
        tool="npu-smi info",
        devices=devices,
        error=error or ("" if devices else "no device in its output"),
        advice=f"{_BY_HAND}; in a container mount /usr/local/bin/npu-smi and /usr/local/dcmi",
        components=(
            Component(
                "Ascend driver",
                driver_version(installed),
                None,
                "install the driver and the firmware that CANN's release notes name; in a "
                f"container mount {installed}/driver/version.info",
            ),
            Component(
                "CANN",
                cann_version(toolkit_folders(environment, installed)),
                CANN_VERSION,
                "install toolkit, kernels and NNAL of the required release and source their "
                "set_env.sh before the run",
            ),
            *(
                Component(name, _folder(environment.get(name)), None, advice)
                for name, advice in scripts.items()
            ),
        ),
    )


def _folder(name: str | None) -> str | None:
    return name if name and Path(name).is_dir() else None


def driver_version(installed: Path) -> str | None:
    """Return the version of the driver in the installation folder."""
    entries = _entries([installed / "driver" / "version.info"])
    return entries.get("package_version") or entries.get("Version")


def toolkit_folders(environment: Mapping[str, str], installed: Path) -> list[Path]:
    """Return possible folders of CANN, the one in use first."""
    named = (environment.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
    usual = (installed / "ascend-toolkit" / "latest", installed / "cann")
    return [*(Path(folder) for folder in named if folder), *usual]


def cann_version(folders: Iterable[Path]) -> str | None:
    """Return the version of CANN in the first folder that has one."""
    for folder in folders:
        entries = _entries(folder.glob("*/ascend_toolkit_install.info"))
        if found := entries.get("version"):
            return found
        # runtime_running_version=[7.6.0.1.220:8.0.0]
        running = _entries([folder / "version.cfg"]).get("runtime_running_version", "")
        if found := running.strip("[]").rpartition(":")[2]:
            return found
    return None


def _entries(files: Iterable[Path]) -> dict[str, str]:
    """Parse lines of the form name=value of the first readable file."""
    text = next(filter(None, map(text_of, files)), "")
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_nvidia_smi(devices: str, processes: str) -> tuple[Device, ...]:
    """Parse the answers about devices and their processes."""
    holders: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    for uuid, pid in _rows(processes):
        holders[uuid] += (_number(pid),)
    return tuple(
        Device(
            index=_number(index),
            name=name,
            health=f"{errors} uncorrected memory errors" if _number(errors) else HEALTHY,
            total_mib=_number(total),
            used_mib=_number(used),
            processes=holders[uuid],
        )
        for index, uuid, name, total, used, _, errors in _rows(devices)
    )


def nvidia_report() -> DeviceReport:
    """Run nvidia-smi."""
    query = f"--query-gpu={_DEVICE_FIELDS}"
    text, error = answer_of("nvidia-smi", query, _FORMAT)
    processes, _ = answer_of("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", _FORMAT)
    versions = sorted({row[5] for row in _rows(text)})
    advice = "install the driver; in a container start it with the devices"
    return DeviceReport(
        tool="nvidia-smi",
        devices=parse_nvidia_smi(text, processes),
        error=error,
        advice=_BY_HAND,
        components=(Component("NVIDIA driver", ", ".join(versions) or None, None, advice),),
    )


def _rows(text: str) -> Iterator[list[str]]:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if row:
            yield [cell.strip() for cell in row]


def _number(text: str) -> int:
    """Parse a count; unknown values, such as `[N/A]`, are 0."""
    return int(text) if text.isdecimal() else 0
