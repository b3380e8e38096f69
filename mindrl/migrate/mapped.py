"""What becomes of one key of a MindSpeed-RL file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mindrl.migrate.file import TheirModel, TheirRun
from mindrl.migrate.keys import DEFAULTS

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


def same(theirs: TheirRun, key: str, ours: str = "") -> Iterator[Mapped]:
    """Take a key over as it is, or the default that it stands for where the file leaves it out."""
    ours = ours or key
    if key in theirs.given:
        note = "written as text there, a number here" if key in theirs.were_texts else ""
        kind: Kind = "honoured" if key.rpartition(".")[2] == ours.rpartition(".")[2] else "renamed"
        yield Mapped(key, kind, {ours: theirs.given[key]}, note)
    elif key in DEFAULTS:
        yield default(key, ours, DEFAULTS[key])


def same_of_model(model: TheirModel, key: str, section: str = "") -> Iterator[Mapped]:
    """Do the same for a key of a model, which is one of that model's section here."""
    place, ours = model.place(key), f"{section or model.section}.{key}"
    if place in model.run.given:
        yield from same(model.run, place, ours)
    elif f"role.{key}" in DEFAULTS:
        yield default(place, ours, DEFAULTS[f"role.{key}"])


def default(key: str, ours: str, value: Any) -> Mapped:
    """Write out a default of MindSpeed-RL that is not ours."""
    return Mapped(key, "derived", {ours: value}, "not in the file: MindSpeed-RL's default")


def ignored(key: str, note: str) -> Mapped:
    """Leave a key out that changes nothing."""
    return Mapped(key, "ignored", note=note)


def at_least(key: str, given: int | None, least: int, why: str, ours: str = "") -> Mapped:
    """Take a limit over, or the number that it must be at least.

    Args:
        key: Theirs.
        given: What the file says, or what it stands for.
        least: The least legal value.
        why: It must be raised.
        ours: Our key, where it is another one.
    """
    if given is not None and given >= least:
        return Mapped(key, "honoured", {ours or key: given})
    there = "not in the file" if given is None else f"{given} there"
    return Mapped(key, "derived", {ours or key: least}, f"{there}; {why}")
