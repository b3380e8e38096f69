"""Rank orders that a layout's grid can use.

torch sorts the ranks of a group, so coordinates must rise with the rank. The orders tried here are
mixed-radix numberings: each dimension's size is split into prime digits, and the digits are
interleaved in every way. Imports no torch.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from mindrl.layouts.rank_order import RankOrder, merged

_MOST_ORDERS = 20_000
_LOCAL = frozenset({"tp", "cp", "etp", "ep"})
"""Dimensions whose groups must stay inside a node if they do in the engine's own order."""


def possible_orders(
    own: RankOrder, ranks_per_node: int, is_legal: Callable[[RankOrder], bool]
) -> Iterator[RankOrder]:
    """Yield the legal orders of a grid, the engine's own first.

    `is_legal` is the engine's own requirement.
    """
    local = {name for name, _ in own.digits} & _LOCAL
    stay = [name for name in sorted(local) if _inside_nodes(own, name, ranks_per_node)]
    for order in islice(_interleavings(own), _MOST_ORDERS):
        if is_legal(order) and all(_inside_nodes(order, name, ranks_per_node) for name in stay):
            yield order


def _interleavings(own: RankOrder) -> Iterator[RankOrder]:
    """Yield every order of the prime digits of all dimensions, the engine's own first."""
    yield own
    left = {name: _prime_factors(radix) for name, radix in own.digits}

    def grow(digits: tuple[tuple[str, int], ...]) -> Iterator[tuple[tuple[str, int], ...]]:
        if not any(left.values()):
            yield digits
            return
        for name, factors in left.items():
            if factors:
                radix = factors.pop()
                yield from grow((*digits, (name, radix)))
                factors.append(radix)

    empty = tuple((name, 1) for name, radix in own.digits if radix == 1)
    seen = {own.digits}
    for digits in grow(()):
        joined = merged(digits) + empty
        if joined not in seen:
            seen.add(joined)
            yield RankOrder(digits=joined)


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _inside_nodes(order: RankOrder, dimension: str, ranks_per_node: int) -> bool:
    """Return whether every group of a dimension lies inside one node."""
    first = np.zeros(1, dtype=np.int64)
    weight = 1
    for name, radix in order.digits:
        if name != dimension:
            first = np.add.outer(first, weight * np.arange(radix)).ravel()
        weight *= radix
    last = first + order.width(dimension)
    return bool((first // ranks_per_node == last // ranks_per_node).all())
