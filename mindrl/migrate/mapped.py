"""The result of an import: what each key is mapped to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mindrl.migrate.file import TheirModel, TheirRun, of_any_role
from mindrl.migrate.keys import DEFAULTS

SAME_MEANING = "same meaning"
"""Note of a key that only has another name in mindrl."""
MISSING = "???"
"""Placeholder for a value that the user has to set; a run refuses to start with it."""
Kind = Literal["honoured", "renamed", "derived", "open", "ignored", "refused"]
"""The user must settle `open` before a run; `refused` asks for a feature that mindrl lacks."""


@dataclass(frozen=True)
class Mapped:
    """Mapping of one key of the file, or of one default that the file relies on."""

    key: str
    """Key as written in the file, such as `rl_config.clip_ratio`."""
    kind: Kind
    """How the key is handled."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """mindrl keys with their values. For a refused key: the values of a run without the feature."""
    note: str = ""
    """Reason, and what the user should do."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Result of importing a file."""

    mapped: Sequence[Mapped]
    """Every key of the file, and the defaults that it relies on."""

    @property
    def refused(self) -> tuple[Mapped, ...]:
        """Entries that ask for a feature that mindrl lacks."""
        return tuple(each for each in self.mapped if each.kind == "refused")

    @property
    def values(self) -> Mapping[str, Any]:
        """Dotted mindrl keys with their values; features that mindrl lacks are left out."""
        return {key: value for each in self.mapped for key, value in each.sets.items()}

    def with_origin(self, error: str) -> str:
        """Add to an error the name of its key in the imported file, if it is another one."""
        origins = {ours: each.key for each in self.mapped for ours in each.sets}
        ours = error.partition("=")[0]
        theirs = origins.get(ours, ours)
        return error if theirs == ours else f"{error} (from {theirs})"


def same(theirs: TheirRun, key: str, ours: str = "") -> Iterator[Mapped]:
    """Yield an entry that copies a key, or its MindSpeed-RL default if the file omits the key."""
    if key in theirs.given:
        note = "was text in the file, is a number in mindrl" if key in theirs.were_texts else ""
        yield Mapped(key, "honoured", {ours or key: theirs.given[key]}, note)
    elif of_any_role(key) in DEFAULTS:
        yield default(key, ours or key, DEFAULTS[of_any_role(key)])


def same_of_model(model: TheirModel, key: str, section: str = "") -> Iterator[Mapped]:
    """Apply `same` to a key of a model; the mindrl key is in that model's section."""
    yield from same(model.run, model.place(key), f"{section or model.section}.{key}")


def of_model(model: TheirModel, key: str, kind: Kind, value: Any = None, note: str = "") -> Mapped:
    """Return the entry for a model key that keeps its name in the model's mindrl section."""
    sets = {} if value is None else {f"{model.section}.{key}": value}
    return Mapped(model.place(key), kind, sets, note)


def default(key: str, ours: str, value: Any) -> Mapped:
    """Return an entry that writes out a MindSpeed-RL default that differs from mindrl's."""
    return Mapped(key, "derived", {ours: value}, "not in the file; MindSpeed-RL's default")


def at_least(key: str, given: int | None, least: int, why: str, ours: str = "") -> Mapped:
    """Return an entry that copies a limit, or raises it to the least legal value and why."""
    if given is not None and given >= least:
        return Mapped(key, "honoured", {ours or key: given})
    there = "not in the file" if given is None else f"was {given}"
    return Mapped(key, "derived", {ours or key: least}, f"{there}; {why}")
