"""What is wrong with a configuration: a finding for each rule that it breaks. Imports no torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from math import isqrt

Value = bool | int | float | str | tuple[str | int | float, ...] | None
"""What a key can have."""

_LARGEST_TRIED = 1_000_000
"""Beyond it divisors are not searched for: the sizes of a run are far below its square."""
_REFERENCE = "docs/reference/config.md"


@dataclass(frozen=True)
class Finding:
    """One rule that a configuration breaks; as text, its whole sentence."""

    text: str
    """For a person: field, value and need."""
    field: str
    """Key to change, such as `rl_config.mini_batch_size`; where there is none, the place."""
    value: Value = None
    """What was found there."""
    legal: tuple[Value, ...] = ()
    """Values that this rule allows, the nearest first; empty where none can be named."""
    page: str | None = None
    """Page of the docs that says more; None is that of the field's section."""

    def __str__(self) -> str:
        return self.text

    @property
    def need(self) -> str:
        """What the field needs, in words: the sentence without its beginning."""
        rest = self.text.removeprefix(self.field)
        return rest.removeprefix(f"={spelled(self.value)}").lstrip("=: ")

    @property
    def doc(self) -> str:
        """Where the docs say more."""
        names = [name for name in self.field.split(".") if not name.isdigit()]
        anchor = "".join(names[:-1] or names).lower()
        return self.page or f"{_REFERENCE}#{anchor}"


def spelled(value: Value) -> str:
    """Write a value as the command line takes it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(map(str, value))
        case None:
            return "null"
    return str(value)


def broken(field: str, value: Value, need: str, *legal: Value) -> Finding:
    """Make a finding whose sentence is the field, its value and what the field needs."""
    gap = "" if need.startswith(":") else " "
    return Finding(f"{field}={spelled(value)}{gap}{need}", field, value, legal)


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the end of a sentence that names what is most like `name`; empty where nothing is."""
    near = get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def once(found: Iterable[Finding]) -> list[Finding]:
    """Keep one finding of those that say the same."""
    return list({finding.text: finding for finding in found}.values())


def nearest_divisors(number: int, value: int) -> str:
    """Name the divisors of `number` that lie next to `value`."""
    sizes = divisors(number)
    below = [size for size in sizes if size < value][-1:]
    above = [size for size in sizes if size > value][:1]
    return ", ".join(map(str, below + above))


def must_divide(field: str, value: int, what: str, number: int) -> Iterator[Finding]:
    """Say so where `value` does not divide `number`."""
    if number % value:
        need = f"must divide {what}={number}; nearest: {nearest_divisors(number, value)}"
        yield broken(field, value, need, *divisors_near(number, value))


def divisors_near(number: int, value: int) -> tuple[int, ...]:
    """List the divisors of `number`, the nearest to `value` first."""
    return nearest_first(divisors(number), value)


def nearest_first(sizes: Iterable[int], value: int) -> tuple[int, ...]:
    """Sort sizes by their distance to `value`; of two at one distance the larger comes first."""
    return tuple(sorted(sizes, key=lambda size: (abs(size - value), -size)))


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, sorted; of a very large one not all."""
    tried = range(1, min(isqrt(number), _LARGEST_TRIED) + 1)
    small = [size for size in tried if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
