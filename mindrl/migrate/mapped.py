"""What becomes of the keys of a MindSpeed-RL file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mindrl.migrate.file import TheirModel, TheirRun, of_any_role
from mindrl.migrate.keys import DEFAULTS

MISSING = "???"
"""Value of a key that the user has to set: a run refuses to start without it."""
Kind = Literal["honoured", "renamed", "derived", "open", "ignored", "refused"]
"""`open` is the user's to settle before a run; `refused` is a part of the run that is not there."""


@dataclass(frozen=True)
class Mapped:
    """One key of the file, or one default that it relies on, and what it comes to."""

    key: str
    """As the file has it, such as `rl_config.clip_ratio`."""
    kind: Kind
    """What becomes of it."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """Our keys with their values. For a refused key: those of a run without it."""
    note: str = ""
    """Why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """What becomes of a file."""

    mapped: Sequence[Mapped]
    """Every key of the file, and the defaults that it relies on."""

    @property
    def refused(self) -> tuple[Mapped, ...]:
        """Parts of the run that are not there."""
        return tuple(each for each in self.mapped if each.kind == "refused")

    @property
    def values(self) -> Mapping[str, Any]:
        """Our keys, dotted, with their values; refused parts left out."""
        return {key: value for each in self.mapped for key, value in each.sets.items()}


def same(theirs: TheirRun, key: str, ours: str = "") -> Iterator[Mapped]:
    """Take a key over as it is, or the default that it stands for where the file leaves it out."""
    if key in theirs.given:
        note = "written as text there, a number here" if key in theirs.were_texts else ""
        yield Mapped(key, "honoured", {ours or key: theirs.given[key]}, note)
    elif of_any_role(key) in DEFAULTS:
        yield default(key, ours or key, DEFAULTS[of_any_role(key)])


def same_of_model(model: TheirModel, key: str, section: str = "") -> Iterator[Mapped]:
    """Do the same for a key of a model, which is one of that model's section here."""
    yield from same(model.run, model.place(key), f"{section or model.section}.{key}")


def of_model(model: TheirModel, key: str, kind: Kind, value: Any = None, note: str = "") -> Mapped:
    """Say what becomes of a key of a model that has its name and the model's section here."""
    sets = {} if value is None else {f"{model.section}.{key}": value}
    return Mapped(model.place(key), kind, sets, note)


def default(key: str, ours: str, value: Any) -> Mapped:
    """Write out a default of MindSpeed-RL that is not ours."""
    return Mapped(key, "derived", {ours: value}, "not in the file: MindSpeed-RL's default")


def at_least(key: str, given: int | None, least: int, why: str, ours: str = "") -> Mapped:
    """Take a limit over as it is given or meant, or say why it is raised to the least legal one."""
    if given is not None and given >= least:
        return Mapped(key, "honoured", {ours or key: given})
    there = "not in the file" if given is None else f"{given} there"
    return Mapped(key, "derived", {ours or key: least}, f"{there}; {why}")
