"""The devices, the driver and CANN of an Ascend machine: `npu-smi info` and version files."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindrl.platform.host_memory import text_of
from mindrl.platform.npu_versions import CANN_VERSION
from mindrl.platform.probes.device_report import Component, Device, DeviceReport, answer_of

_INSTALLED = "/usr/local/Ascend"

# Two lines for each die, `NPU Name | Health | ...` above `Chip Phy-ID | Bus-Id | ...`, then a
# second table of processes. Where a card has one die there is no Phy-ID, and the number of the
# NPU is the one that counts. The last pair of numbers is the memory, on a 310P too.
_DIE = re.compile(
    r"^ *\| *(\d+) +(\S+) *\| *([A-Za-z]+) *\|[^|\n]*\| *\n"
    r" *\| *(\d+)(?: +(\d+))? *\| *[0-9A-Fa-f]+:\S+ *\|[^|\n]*?(\d+) */ *(\d+) *\| *$",
    re.MULTILINE,
)
_PROCESS = re.compile(r"^ *\| *(\d+) +(\d+) *\| *(\d+) *\|[^|\n]*\|[^|\n]*\| *$", re.MULTILINE)


def parse_npu_smi(text: str) -> tuple[Device, ...]:
    """Read the tables of `npu-smi info`."""
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
    """Ask the tool and read the version files of the driver and of CANN."""
    # As for the launch scripts.
    installed = Path(environment.get("ASCEND_INSTALL_DIR") or _INSTALLED)
    text, error = answer_of("npu-smi", "info")
    devices = parse_npu_smi(text)
    scripts = {
        "ASCEND_HOME_PATH": f"source set_env.sh of CANN, below {installed}; the engine reads it",
        "ATB_HOME_PATH": f"source {installed}/nnal/atb/set_env.sh; the engine's kernels need it",
    }
    return DeviceReport(
        tool="npu-smi info",
        devices=devices,
        error=error or ("" if devices else "no device in its answer"),
        advice="run it by hand: the driver is not loaded, or this user may not open the devices; "
        "in a container mount /usr/local/bin/npu-smi and /usr/local/dcmi",
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
                f"install toolkit, kernels and NNAL of CANN {CANN_VERSION} and source their "
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
    """Read the version of the driver below the folder of the installation."""
    entries = _entries([installed / "driver" / "version.info"])
    return entries.get("package_version") or entries.get("Version")


def toolkit_folders(environment: Mapping[str, str], installed: Path) -> list[Path]:
    """List where CANN may be, the one in use first."""
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


def _entries(files: Iterable[Path]) -> dict[str, str]:
    """Read lines of the form name=value of the first file that can be read."""
    text = next(filter(None, map(text_of, files)), "")
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
