"""Numbering of ranks over parallel dimensions. Pure Python."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True, kw_only=True)
class RankOrder:
    """A mixed-radix numbering: each digit of a rank belongs to one parallel dimension.

    A dimension may have several digits, the less significant one first: with the digits `dp 2, tp
    2, dp 2` the ranks 0, 1, 4, 5 are tensor-parallel rank 0. In every order, coordinates rise with
    the rank inside each group.
    """

    digits: tuple[tuple[str, int], ...]
    """Dimension and radix, the fastest first."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(radix for _, radix in self.digits)

    @cached_property
    def coordinates(self) -> tuple[Mapping[str, int], ...]:
        """Coordinate of each rank in each dimension; a dimension without digits is absent."""
        return tuple(self._place(rank) for rank in range(self.world_size))

    def width(self, dimension: str) -> int:
        """Return the distance between the first and last rank of a group; equal in all groups."""
        width, weight = 0, 1
        for name, radix in self.digits:
            width += (radix - 1) * weight if name == dimension else 0
            weight *= radix
        return width

    def groups(self, dimensions: Collection[str]) -> list[list[int]]:
        """Return the groups of ranks that differ only in these dimensions, ascending."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(self.coordinates):
            others = tuple(at for name, at in place.items() if name not in dimensions)
            groups.setdefault(others, []).append(rank)
        return sorted(groups.values())

    def places_in_groups(self, dimensions: Collection[str]) -> list[tuple[int, int]]:
        """Return each rank's index in its group of `groups`, and the size of the groups."""
        groups = self.groups(dimensions)
        places = {rank: (at, len(group)) for group in groups for at, rank in enumerate(group)}
        return [places[rank] for rank in range(self.world_size)]

    def _place(self, rank: int) -> dict[str, int]:
        place: dict[str, int] = {}
        weight: dict[str, int] = {}
        for name, radix in self.digits:
            rank, digit = divmod(rank, radix)
            place[name] = place.get(name, 0) + digit * weight.get(name, 1)
            weight[name] = weight.get(name, 1) * radix
        return place


def merged(digits: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the digits with neighbours of the same dimension joined."""
    joined: list[tuple[str, int]] = []
    for name, radix in digits:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] * radix)
        else:
            joined.append((name, radix))
    return tuple(joined)
