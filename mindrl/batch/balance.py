"""Balanced distribution of sequences to ranks and to micro-batches.

Pure functions of lengths and costs. Imports no torch.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

Group = tuple[float, tuple[int, ...]]
"""A sum of costs and the indices of its terms."""


@dataclass(frozen=True, kw_only=True)
class MicroBatching:
    """How the sequences of a rank are divided into micro-batches."""

    sequences: int
    """Sequences per micro-batch; ignored if `tokens` is set."""
    tokens: int | None = None
    """Maximum tokens of a micro-batch, which then has as many sequences as fit."""

    def cut(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the indices of each micro-batch, from the number of tokens of each sequence.

        With a token budget, first-fit decreasing determines the number of micro-batches: at most
        11/9 of the minimum, plus one. They are then balanced, unless that exceeds the budget; in
        that case the first-fit result is returned.

        Raises:
            ValueError: A sequence is longer than `tokens`.
        """
        budget = self.tokens
        if budget is None:
            indices = list(range(len(lengths)))
            return [indices[at : at + self.sequences] for at in indices[:: self.sequences]]
        if max(lengths, default=0) > budget:
            raise ValueError(f"a sequence of {max(lengths)} tokens exceeds the budget of {budget}")
        fitted = _first_fit(lengths, budget)
        balanced = partition(lengths, len(fitted)) if fitted else []
        fits = all(sum(lengths[index] for index in group) <= budget for group in balanced)
        return balanced if fits else _in_order(fitted)


def partition(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Partition the indices of non-negative costs into groups with a small maximum sum.

    Uses Karmarkar and Karp's largest differencing method, then swaps between the largest and the
    smallest group. The largest and the smallest sum differ by at most the largest cost, and no
    group is empty if there are at least as many costs as groups. Groups are sorted by first index,
    and so are the indices of each: equal input gives equal output.
    """
    assert parts >= 1, "at least one replica is needed"
    groups = [list(indices) for _, indices in _differencing(costs, parts)]
    groups += [[] for _ in range(parts - len(groups))]
    _swap(groups, costs)
    return _in_order(groups)


def sequence_costs(lengths: Sequence[int], *, linear: float, quadratic: float) -> list[float]:
    """Return the cost of each sequence: `linear * T + quadratic * T**2` for T tokens.

    In floating-point operations, or any other common unit; attention is the quadratic term.
    """
    return [linear * length + quadratic * length**2 for length in lengths]


def _first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Put each sequence, longest first, into the first group with enough room."""
    room: list[int] = []
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        at = next((at for at, left in enumerate(room) if left >= length), len(room))
        if at == len(room):
            room.append(budget)
            groups.append([])
        room[at] -= length
        groups[at].append(index)
    return groups


def _differencing(costs: Sequence[float], parts: int) -> list[Group]:
    """Merge the two least balanced divisions until one is left.

    A division is a list of non-empty groups, largest sum first. Merging pairs the largest groups of
    one with the smallest of the other; the result is at least as balanced as the worse one.
    """
    # Least indices are unique, so the heap never compares divisions.
    alone: list[list[Group]] = [[(cost, (at,))] for at, cost in enumerate(costs)]
    heap = [(_spread(division, parts), at, division) for at, division in enumerate(alone)]
    heapify(heap)
    while len(heap) > 1:
        _, first_index, first = heappop(heap)
        _, second_index, second = heap[0]
        joined = _joined(first, second, parts)
        least = min(first_index, second_index)
        heapreplace(heap, (_spread(joined, parts), least, joined))
    return heap[0][2] if heap else []


def _joined(first: list[Group], second: list[Group], parts: int) -> list[Group]:
    first_alone, second_alone = max(0, parts - len(second)), max(0, parts - len(first))
    pairs = zip(first[first_alone:], reversed(second[second_alone:]), strict=True)
    groups = first[:first_alone] + second[:second_alone]
    groups += [(one + other, ones + others) for (one, ones), (other, others) in pairs]
    return sorted(groups, key=lambda group: -group[0])


def _spread(groups: list[Group], parts: int) -> float:
    """Return the smallest sum minus the largest: the least balanced division sorts first."""
    smallest = groups[-1][0] if len(groups) == parts else 0.0
    return smallest - groups[0][0]


def _swap(groups: list[list[int]], costs: Sequence[float]) -> None:
    """Exchange indices of the largest and the smallest group while that reduces their gap."""
    sums = [sum(costs[index] for index in group) for group in groups]
    # The bound stops endless exchanges between sums that differ by rounding only.
    for _ in range(4 * len(groups)):
        large, small = sums.index(max(sums)), sums.index(min(sums))
        trade = _best_trade(groups[large], groups[small], costs, sums[large] - sums[small])
        if trade is None:
            return
        given, taken = trade
        groups[large] = [index for index in groups[large] if index != given] + taken
        groups[small] = [index for index in groups[small] if index not in taken] + [given]
        for at in (large, small):
            sums[at] = sum(costs[index] for index in groups[at])


def _best_trade(
    large: list[int], small: list[int], costs: Sequence[float], gap: float
) -> tuple[int, list[int]] | None:
    """Return the index to give and those to take that move closest to half the gap."""
    offers = sorted((costs[index], index) for index in small)
    best, found = gap / 2, None
    for given in sorted(large):
        at = bisect(offers, (costs[given] - gap / 2, -1))
        choices = [(cost, [index]) for cost, index in offers[max(0, at - 1) : at + 1]]
        for cost, taken in [(0.0, []), *choices]:
            distance = abs(costs[given] - cost - gap / 2)
            if distance < best:
                best, found = distance, (given, taken)
    return found


def _in_order(groups: list[list[int]]) -> list[list[int]]:
    """Sort each group, then the groups by their first index; empty groups come last."""
    return sorted((sorted(group) for group in groups), key=lambda group: (not group, group))
