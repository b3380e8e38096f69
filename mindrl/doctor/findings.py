"""The doctor's findings on packages, devices and settings: one pure function each."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from packaging.requirements import Requirement

from mindrl.doctor.facts import Facts, Observation
from mindrl.observability.units import MIB, gib_text
from mindrl.platform.probes.device_report import HEALTHY, Device
from mindrl.platform.probes.machine import MATRIX_PAGE, PINS_PAGE, SETTINGS_PAGE

_IDLE_SHARE = 0.1
"""Drivers and firmware use 5 % of an idle 64 GiB device, and 9 % of one with 32 GiB."""
_LEAST_FREE_SHARE = 0.5
"""The engine's cache and the training state each use about half of a device."""


def python(facts: Facts) -> Iterator[Observation]:
    """Yield whether mindrl supports this Python."""
    needed = facts.declared.python
    suits = facts.python in needed
    advice = "" if suits else f"create an environment with Python {needed}"
    yield Observation("python", facts.python, "ok" if suits else "problem", advice)


def own_packages(facts: Facts) -> Iterator[Observation]:
    """Yield required packages that are absent or of another version."""
    own, advice = facts.declared.own, "in a checkout of mindrl: pip install ."
    wrong = [found for each in own if (found := _package(facts, each, advice)).verdict != "ok"]
    yield from wrong or [Observation("packages of mindrl", f"{len(own)}, as declared")]


def device_packages(facts: Facts) -> Iterator[Observation]:
    """Compare the packages of the device with their pins."""
    needs = facts.machine.needs
    for each in facts.declared.extras[needs.extra]:
        yield _package(facts, each, needs.advice.get(each.name, needs.how_to_install))
    for pin in needs.pins:
        where = f"branch {pin.branch}, commit {pin.commit[:12]}" if pin.commit else "from source"
        advice = f"install {pin.requirement}, {where}; see {PINS_PAGE}"
        yield _package(facts, Requirement(pin.requirement), advice)


def version_row(facts: Facts) -> Iterator[Observation]:
    """Yield the row of the version matrix that the packages are, or a mixture of two rows."""
    needs = facts.machine.needs
    declared = facts.declared.extras[needs.extra]
    name = needs.row if all(_package(facts, each, "").verdict == "ok" for each in declared) else ""
    if row := needs.generation(facts.versions):
        name = row.name
    parts = [each.name for each in needs.generations if any(each.installed(facts.versions))]
    if name:
        yield Observation("versions", f"row {name!r} of {MATRIX_PAGE}")
    elif len(parts) > 1:
        advice = f"install all packages of one row of {MATRIX_PAGE}"
        yield Observation("versions", f"mixed rows: {'; '.join(parts)}", "problem", advice)


def torch_build(facts: Facts) -> Iterator[Observation]:
    """Find a torch built for another device: its version names the device after a plus.

    A torchvision built for another torch raises an error on import.
    """
    needs = facts.machine.needs
    version, vision = (facts.versions.get(name) or "" for name in ("torch", "torchvision"))
    build = version.partition("+")[2]
    if needs.wrong_torch_build and re.search(needs.wrong_torch_build, build):
        found = f"{version} is not built for {facts.machine.platform.kind}"
        yield Observation("torch build", found, "problem", needs.how_to_install)
    elif version and vision and vision.partition("+")[2] != build:
        found = f"torch {version} and torchvision {vision} may be incompatible"
        advice = "if `import torchvision` fails (operator nms does not exist), install both from "
        yield Observation("torch build", found, "note", advice + "the same index")


def rival_engines(facts: Facts) -> Iterator[Observation]:
    """Find two distributions with the same files: parts of each overwrite the other."""
    unwanted, wanted = facts.machine.needs.rivals
    if facts.versions.get(unwanted) is not None:
        both = facts.versions.get(wanted) is not None
        found = f"{unwanted} is installed {'together with' if both else 'instead of'} {wanted}"
        advice = f"pip uninstall {unwanted} {wanted}, then install {wanted} again"
        yield Observation("engine", found, "problem", advice)


def components(facts: Facts) -> Iterator[Observation]:
    """Compare components that pip does not install, such as the driver, with the requirements."""
    row = facts.machine.needs.generation(facts.versions)
    for each in facts.machine.report.components:
        needed = (row.software if row else {}).get(each.name, each.needed)
        required = f", requires {needed}" if needed else ""
        if each.version is None:
            yield Observation(each.name, f"not found{required}", "problem", each.advice)
        elif needed and _series(each.version) != _series(needed):
            # Only the first two numbers must match: patch releases are compatible.
            found = f"{each.version}{required}"
            yield Observation(each.name, found, "problem", each.advice)
        else:
            yield Observation(each.name, each.version)


def device_count(facts: Facts) -> Iterator[Observation]:
    """Compare the numbers of devices of the system, the vendor's tool and the visible list."""
    machine = facts.machine
    report = machine.report
    if not report.tool:
        yield Observation("devices", f"{machine.device_files} cores for this process")
        return
    if not machine.device_files:
        yield Observation("devices", "no device files", "problem", machine.needs.no_devices)
    if report.error:
        yield Observation(report.tool, report.error, "problem", report.advice)
    elif len(report.devices) < machine.device_files:
        found = f"shows {len(report.devices)} of {machine.device_files} devices"
        advice = "the driver has lost a device: restart the machine"
        yield Observation(report.tool, found, "problem", advice)
    elif machine.device_files:
        yield Observation("devices", f"{machine.device_files} x {report.devices[0].name}")
    yield from _visible_list(facts)


def device_health(facts: Facts) -> Iterator[Observation]:
    """Yield devices that the vendor's tool does not report as healthy."""
    used = _used_devices(facts)
    ill = [device for device in used if device.health != HEALTHY]
    for device in ill:
        advice = f"exclude it: {_without(facts, [device])}; then contact the vendor"
        what = f"device {device.index}"
        yield Observation(what, f"health: {device.health}", "problem", advice)
    if used and not ill:
        yield Observation("device health", "all OK")


def device_memory(facts: Facts) -> Iterator[Observation]:
    """Yield devices on which other processes hold memory."""
    used = _used_devices(facts)
    taken = [each for each in used if each.processes or _share(each) > _IDLE_SHARE]
    for device in taken:
        pids = ", ".join(map(str, device.processes))
        found = f"{gib_text(device.used_mib * MIB)} of {gib_text(device.total_mib * MIB)} in use"
        found += f" by process {pids}" if pids else " by processes that are not visible here"
        advice = f"end them, or exclude the device: {_without(facts, taken)}"
        much = _share(device) > _LEAST_FREE_SHARE
        what = f"memory of device {device.index}"
        yield Observation(what, found, "problem" if much else "note", advice)
    if used and not taken:
        least = min(each.total_mib - each.used_mib for each in used) * MIB
        yield Observation("device memory", f"at least {gib_text(least)} free on each")


def settings(facts: Facts) -> Iterator[Observation]:
    """Yield environment variables that a run refuses, replaces, is slowed by, or does not read."""
    environment, plugin = facts.machine.environment, facts.machine.needs.plugin
    release = facts.versions.get(plugin)
    for setting in facts.machine.platform.settings:
        found = environment.get(setting.name)
        if found is None:
            continue
        if setting.rule == "refused" and setting.matches(environment):
            advice = f"unset it or change it: {setting.why}"
            yield Observation(setting.name, found, "problem", advice)
        elif not setting.is_read(release):
            seen = f"{found}; {plugin} {release} does not read it"
            yield Observation(setting.name, seen, "note", f"unset it; instead: {setting.instead}")
        elif setting.rule == "fixed" and found != setting.value:
            seen = f"{found}; a run sets {setting.value}"
            yield Observation(setting.name, seen, "note", f"unset it: {setting.why}")
        elif setting.rule == "left" and setting.matches(environment):
            yield Observation(setting.name, found, "note", f"{setting.why} ({SETTINGS_PAGE})")


def _visible_list(facts: Facts) -> Iterator[Observation]:
    machine = facts.machine
    name, listed = machine.platform.visible_variable, machine.visible
    if listed is None or name is None:
        return
    twice = [entry for entry, count in Counter(listed).items() if count > 1]
    numbers = [int(entry) for entry in listed if entry.isdecimal()]
    text = ",".join(listed)
    # In a container the numbers may not start at 0.
    last = max([machine.device_files - 1, *(device.index for device in machine.report.devices)])
    if not listed:
        yield Observation(name, "lists no device", "problem", "unset it or list devices")
    elif twice:
        found = f"{text} lists {', '.join(twice)} more than once"
        yield Observation(name, found, "problem", "list each device once")
    elif machine.device_files and max(numbers, default=0) > last:
        found = f"{text} lists devices that do not exist"
        yield Observation(name, found, "problem", f"list devices from 0 to {last}")
    else:
        yield Observation(name, f"{text}: a run uses {len(listed)} devices")


def _used_devices(facts: Facts) -> list[Device]:
    """Return the devices that a run would use: the visible ones, if listed by number."""
    visible = facts.machine.visible or ()
    devices = list(facts.machine.report.devices)
    return [each for each in devices if str(each.index) in visible] or devices


def _without(facts: Facts, left_out: Sequence[Device]) -> str:
    rest = [str(each.index) for each in _used_devices(facts) if each not in left_out]
    variable = facts.machine.platform.visible_variable
    return f"{variable}={','.join(rest)}" if rest else "no device remains"


def _share(device: Device) -> float:
    return device.used_mib / device.total_mib if device.total_mib else 0.0


def _package(facts: Facts, needed: Requirement, advice: str) -> Observation:
    version = facts.versions.get(needed.name)
    newer = (pin for row in facts.machine.needs.generations[1:] for pin in row.engine)
    for pin in newer:
        if pin.distribution == needed.name and pin.is_series_of(version):
            found = f"{version}; the engine is tested with {pin.version}, on a simulated device"
            return Observation(needed.name, found, "note", f"see {PINS_PAGE}")
    if version is None:
        found = f"missing, requires {needed.name}{needed.specifier}"
        return Observation(needed.name, found, "problem", advice)
    if not needed.specifier.contains(version, prereleases=True):
        found = f"{version}, requires {needed.specifier}"
        return Observation(needed.name, found, "problem", advice)
    pinned = f", as pinned ({needed.specifier})" if needed.specifier else ""
    return Observation(needed.name, f"{version}{pinned}")


def _series(version: str) -> list[str]:
    """Return the first two numbers of a version."""
    return version.split(".")[:2]


PACKAGE_FINDINGS = (
    python,
    own_packages,
    device_packages,
    version_row,
    torch_build,
    rival_engines,
    components,
)
DEVICE_FINDINGS = (device_count, device_health, device_memory, settings)
