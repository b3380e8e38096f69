"""The devices and the driver of a CUDA machine, by `nvidia-smi`."""

import csv
from collections import defaultdict
from collections.abc import Iterator

from mindrl.platform.probes.device_report import (
    HEALTHY,
    Component,
    Device,
    DeviceReport,
    answer_of,
)

_DEVICE_FIELDS = (
    "index,uuid,name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"
)
_FORMAT = "--format=csv,noheader,nounits"


def parse_nvidia_smi(devices: str, processes: str) -> tuple[Device, ...]:
    """Read the answers about devices and about the processes on them."""
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
    """Ask the tool."""
    query = f"--query-gpu={_DEVICE_FIELDS}"
    text, error = answer_of("nvidia-smi", query, _FORMAT)
    processes, _ = answer_of("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", _FORMAT)
    versions = sorted({row[5] for row in _rows(text)})
    advice = "install the driver; in a container start it with the devices"
    return DeviceReport(
        tool="nvidia-smi",
        devices=parse_nvidia_smi(text, processes),
        error=error,
        advice="run it by hand: the driver is not loaded, or this user may not open the devices",
        components=(Component("NVIDIA driver", ", ".join(versions) or None, None, advice),),
    )


def _rows(text: str) -> Iterator[list[str]]:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if row:
            yield [cell.strip() for cell in row]


def _number(text: str) -> int:
    """Read a count; what the tool does not know, such as `[N/A]`, is 0."""
    return int(text) if text.isdecimal() else 0
