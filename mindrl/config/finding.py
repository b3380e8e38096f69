"""Findings: one for each rule that a configuration breaks. Imports no torch."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import isqrt
from typing import Any

Value = bool | int | float | str | tuple[str | int | float, ...] | None
"""Value of a key."""

_LARGEST_TRIED = 1_000_000
"""Limit of the search for divisors: the sizes of a run are far below its square."""
_REFERENCE = "docs/reference/config.md"


@dataclass(frozen=True)
class Finding:
    """One broken rule; as text, its whole sentence."""

    text: str
    """Sentence for the user: field, value and need."""
    field: str
    """Key to change, such as `rl_config.mini_batch_size`, or another place."""
    value: Value = None
    """Value of the field."""
    legal: tuple[Value, ...] = ()
    """Values that this rule allows, the nearest first; empty if unknown."""
    page: str | None = None
    """Page of the docs about it; None uses that of the field's section."""

    def __str__(self) -> str:
        return self.text

    @property
    def need(self) -> str:
        """The field's requirement: the sentence without its beginning."""
        rest = self.text.removeprefix(self.field)
        return rest.removeprefix(f"={spelled(self.value)}").lstrip("=: ")

    @property
    def doc(self) -> str:
        """Page of the docs about it."""
        names = [name for name in self.field.split(".") if not name.isdigit()]
        anchor = "".join(names[:-1] or names).lower()
        return self.page or f"{_REFERENCE}#{anchor}"


def spelled(value: Value) -> str:
    """Format a value as written on the command line."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            short = f"{value:g}"
            # A limit that is rounded up would be refused again.
            return short if float(short) == value else repr(value)
        case tuple():
            return ",".join(map(str, value))
        case None:
            return "null"
    return str(value)


def broken(field: str, value: Value, need: str, *legal: Value) -> Finding:
    """Return a finding whose sentence is field, value and need."""
    gap = "" if need.startswith(":") else " "
    return Finding(f"{field}={spelled(value)}{gap}{need}", field, value, legal)


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the end of a sentence that suggests the name nearest to `name`; may be empty."""
    near = get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def once(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings without repeated sentences."""
    return list({finding.text: finding for finding in found}.values())


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, each once."""
    return [name for name, count in Counter(names).items() if count > 1]


def nearest_divisors(number: int, value: int) -> str:
    """Return the divisors of `number` next to `value`, as text."""
    sizes = divisors(number)
    below = [size for size in sizes if size < value][-1:]
    above = [size for size in sizes if size > value][:1]
    return ", ".join(map(str, below + above))


def must_divide(field: str, value: int, what: str, number: int) -> Iterator[Finding]:
    """Yield a finding if `value` does not divide `number`."""
    if number % value:
        need = f"must divide {what}={number}; nearest: {nearest_divisors(number, value)}"
        yield broken(field, value, need, *divisors_near(number, value))


def must_be_default(
    field: str, section: Any, need: str, names: Iterable[str] | None = None
) -> Iterator[Finding]:
    """Yield a finding for each key of a section, a dataclass, that differs from its default.

    `field` is the key of the section; `names` are the keys to check, None for all.
    """
    default: dict[str, Any] = {each.name: each.default for each in fields(section)}
    for name in default if names is None else names:
        if (value := getattr(section, name)) != default[name]:
            yield broken(f"{field}.{name}", value, need, default[name])


def divisors_near(number: int, value: int) -> tuple[int, ...]:
    """Return the divisors of `number`, the nearest to `value` first."""
    return nearest_first(divisors(number), value)


def nearest_first(sizes: Iterable[int], value: int) -> tuple[int, ...]:
    """Sort sizes by their distance to `value`; at equal distance the larger comes first."""
    return tuple(sorted(sizes, key=lambda size: (abs(size - value), -size)))


def divisors(number: int) -> list[int]:
    """Return the sorted divisors of a number; incomplete for very large numbers."""
    tried = range(1, min(isqrt(number), _LARGEST_TRIED) + 1)
    small = [size for size in tried if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
