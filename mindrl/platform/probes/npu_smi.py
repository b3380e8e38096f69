"""The devices, the driver and CANN of an Ascend machine: `npu-smi info` and version files."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindrl.platform.npu_versions import CANN_VERSION
from mindrl.platform.probes.device_report import Component, Device, DeviceReport, answer_of

_INSTALLED = "/usr/local/Ascend"

# Two lines for each die, `NPU Name | Health | ...` above `Chip Phy-ID | Bus-Id | ...`, then a
# second table of processes. Where a card has one die there is no Phy-ID, and the number of the
# NPU is the one that counts. The last pair of numbers is the memory, on a 310P too.
_NAME_LINE = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|[^|]*\|$")
_DIE_LINE = re.compile(
    r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*[0-9A-Fa-f]+:\S+\s*\|[^|]*?(\d+)\s*/\s*(\d+)\s*\|$"
)
_PROCESS_LINE = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|[^|]*\|[^|]*\|$")


def parse_npu_smi(text: str) -> tuple[Device, ...]:
    """Read the tables of `npu-smi info`."""
    processes = _processes(text)
    devices = []
    head: tuple[int, str, str] | None = None
    for line in map(str.strip, text.splitlines()):
        if found := _NAME_LINE.match(line):
            head = (int(found[1]), found[2], found[3])
        elif head and (found := _DIE_LINE.match(line)):
            number, name, health = head
            devices.append(
                Device(
                    index=int(found[2] or number),
                    name=name,
                    is_healthy=health == "OK",
                    health=health,
                    total_mib=int(found[4]),
                    used_mib=int(found[3]),
                    processes=processes[number, int(found[1])],
                )
            )
            head = None
    return tuple(devices)


def npu_report(environment: Mapping[str, str]) -> DeviceReport:
    """Ask the tool and read the version files of the driver and of CANN."""
    installed = installation(environment)
    text, error = answer_of("npu-smi", "info")
    devices = parse_npu_smi(text)
    return DeviceReport(
        tool="npu-smi info",
        devices=devices,
        error=error or ("" if devices else "no device in its answer"),
        advice="run it by hand: the driver is not loaded, or this user may not open the devices; "
        "in a container mount /usr/local/bin/npu-smi and /usr/local/dcmi",
        components=(
            Component(
                name="Ascend driver",
                version=driver_version(installed),
                needed=None,
                advice="install the driver and the firmware that CANN's release notes name; in a "
                f"container mount {installed}/driver/version.info",
            ),
            Component(
                name="CANN",
                version=cann_version(toolkit_folders(environment)),
                needed=CANN_VERSION,
                advice=f"install toolkit, kernels and NNAL of CANN {CANN_VERSION} and source their "
                "set_env.sh before the run",
            ),
            Component(
                name="ASCEND_HOME_PATH",
                version=_folder(environment.get("ASCEND_HOME_PATH")),
                needed=None,
                advice=f"source set_env.sh of CANN, below {installed}; the engine reads it",
            ),
            Component(
                name="ATB_HOME_PATH",
                version=_folder(environment.get("ATB_HOME_PATH")),
                needed=None,
                advice=f"source {installed}/nnal/atb/set_env.sh; the engine's kernels need it",
            ),
        ),
    )


def driver_version(installed: Path) -> str | None:
    """Read the version of the driver below the folder of the installation."""
    entries = _entries([installed / "driver" / "version.info"])
    return entries.get("package_version") or entries.get("Version")


def installation(environment: Mapping[str, str]) -> Path:
    """Return where driver and CANN are: ASCEND_INSTALL_DIR, as for the launch scripts."""
    return Path(environment.get("ASCEND_INSTALL_DIR") or _INSTALLED)


def toolkit_folders(environment: Mapping[str, str]) -> list[Path]:
    """List where CANN may be, the one in use first."""
    installed = installation(environment)
    named = (environment.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
    usual = (installed / "ascend-toolkit" / "latest", installed / "cann")
    return [*(Path(folder) for folder in named if folder), *usual]


def cann_version(folders: Iterable[Path]) -> str | None:
    """Read the version of CANN in the first folder that has one."""
    for folder in folders:
        entries = _entries(folder.glob("*/ascend_toolkit_install.info"))
        if found := entries.get("version"):
            return found
        # runtime_running_version=[7.6.0.1.220:8.0.0]
        running = _entries([folder / "version.cfg"]).get("runtime_running_version", "")
        if found := running.strip("[]").rpartition(":")[2]:
            return found
    return None


def _folder(name: str | None) -> str | None:
    return name if name and Path(name).is_dir() else None


def _processes(text: str) -> defaultdict[tuple[int, int], tuple[int, ...]]:
    found: defaultdict[tuple[int, int], tuple[int, ...]] = defaultdict(tuple)
    for line in map(str.strip, text.splitlines()):
        if match := _PROCESS_LINE.match(line):
            found[int(match[1]), int(match[2])] += (int(match[3]),)
    return found


def _entries(files: Iterable[Path]) -> dict[str, str]:
    """Read lines of the form name=value of the first file that can be read."""
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = (line.strip().partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}
    return {}
