"""Gather the facts that the doctor checks, and define the lines that it prints."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mindrl.doctor.declared import Declared, declared, installed_version
from mindrl.platform.device import DeviceKind
from mindrl.platform.environment import has_room_for_sockets, ray_session_folder
from mindrl.platform.probes.host import DiskFacts, connection_error, disk_facts, port_is_free
from mindrl.platform.probes.machine import MachineFacts, machine_facts

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Observation:
    """One line of output: what was checked, what was found, and what to do about it."""

    what: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""
    """Empty if nothing has to be done."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All facts about this machine."""

    machine: MachineFacts
    python: str
    declared: Declared
    versions: Mapping[str, str | None]
    """Version of each package that any kind of device needs; None if it is absent."""
    outputs: DiskFacts
    session: DiskFacts
    session_fits: bool
    port: int | None
    """Port to check on this machine."""
    port_is_free: bool | None
    """None if no port is given."""
    head: tuple[str, int] | None
    """Ray head to reach."""
    head_error: str | None
    """Empty if the head was reached; None if no head is given."""


def gather(
    kind: DeviceKind, *, outputs: Path, port: int | None, head: tuple[str, int] | None
) -> Facts:
    """Gather the facts that the command line asks for."""
    needed, machine = declared(), machine_facts(kind)
    needs, session = machine.needs, ray_session_folder()
    packages = {each.name for each in (*needed.own, *needed.extras[needs.extra])}
    packages |= {pin.distribution for pin in needs.pins} | set(needs.rivals)
    return Facts(
        machine=machine,
        python=platform.python_version(),
        declared=needed,
        versions={name: installed_version(name) for name in packages},
        outputs=disk_facts(outputs),
        session=disk_facts(session),
        session_fits=has_room_for_sockets(session),
        port=port,
        port_is_free=None if port is None else port_is_free(port),
        head=head,
        head_error=None if head is None else connection_error(*head),
    )
