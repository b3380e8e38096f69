"""What the doctor looks at, gathered in one place; its findings are functions of these facts."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindrl.doctor.declared import Declared, declared, installed_version
from mindrl.platform.device import DeviceKind
from mindrl.platform.environment import has_room_for_sockets, ray_session_folder
from mindrl.platform.probes.host import DiskFacts, connection_error, disk_facts, port_is_free
from mindrl.platform.probes.machine import MachineFacts, machine_facts


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the command line asks for."""

    kind: DeviceKind
    outputs: Path
    port: int | None
    """Is it free on this machine?"""
    head: tuple[str, int] | None
    """Can this Ray head be reached?"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that was looked at."""

    question: Question
    machine: MachineFacts
    python: str
    declared: Declared
    versions: Mapping[str, str | None]
    """Of each package that some kind of device needs; None where it is absent."""
    outputs: DiskFacts
    session: DiskFacts
    session_fits: bool
    port_is_free: bool | None
    """None where the question has no port."""
    head_error: str | None
    """Empty where the head was reached; None where the question has no head."""


def gather(question: Question) -> Facts:
    """Look at this machine for an answer."""
    needed = declared()
    machine = machine_facts(question.kind)
    session = ray_session_folder()
    return Facts(
        question=question,
        machine=machine,
        python=platform.python_version(),
        declared=needed,
        versions={name: installed_version(name) for name in _packages(needed, machine)},
        outputs=disk_facts(question.outputs),
        session=disk_facts(session),
        session_fits=has_room_for_sockets(session),
        port_is_free=None if question.port is None else port_is_free(question.port),
        head_error=None if question.head is None else connection_error(*question.head),
    )


def _packages(needed: Declared, machine: MachineFacts) -> set[str]:
    needs = machine.needs
    requirements = (*needed.own, *needed.extras[needs.extra])
    unwanted = {name for pair in needs.unwanted for name in pair}
    return {each.name for each in requirements} | {p.distribution for p in needs.pins} | unwanted
