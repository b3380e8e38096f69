"""Replicas and micro-batches with sequences that begin alike, to compute shared tokens once.

The trees of a batch (`batch/sequence_trees.py`) stay whole as far as balance and budgets allow.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from mindrl.batch.balance import MicroBatching, partition
from mindrl.batch.sequence_trees import SequenceTree

_SHARES_PER_REPLICA = 2
"""Fewer trees than this are divided, so that replicas have equal work."""


def deal(
    found: Sequence[SequenceTree],
    lengths: Sequence[int],
    costs: Callable[[Sequence[int]], Sequence[float]],
    count: int,
) -> list[list[int]]:
    """Return the rows of `count` replicas of about equal cost, with few trees divided.

    `costs` maps lengths of sequences to their costs. Shared tokens cost once per replica.
    """
    parts = sorted(found, key=lambda tree: -len(tree.rows))
    while len(parts) < _SHARES_PER_REPLICA * count and len(parts[0].rows) > 1:
        parts = sorted([*parts[0].halves(), *parts[1:]], key=lambda tree: -len(tree.rows))
    of_rows = costs(lengths)
    of_parts = [sum(of_rows[row] for row in part.rows) - _spared(part, costs) for part in parts]
    return _rows_of(partition(of_parts, count), parts)


def cut(
    found: Sequence[SequenceTree], lengths: Sequence[int], micro_batching: MicroBatching
) -> list[list[int]]:
    """Return the rows of each micro-batch: see `MicroBatching.cut`. Shared tokens count once.

    Raises:
        ValueError: A sequence is longer than `micro_batching.tokens`.
    """
    if micro_batching.tokens is None:
        return micro_batching.cut(lengths)
    parts = [part for each in found for part in _fitting(each, lengths, micro_batching.tokens)]
    sizes = [part.tokens(lengths) for part in parts]
    return _rows_of(micro_batching.cut(sizes), parts)


def _spared(tree: SequenceTree, costs: Callable[[Sequence[int]], Sequence[float]]) -> float:
    """Return the cost that sharing saves: that of all copies of shared tokens but the first."""
    times = Counter(tree.known)
    return sum(count * cost for count, cost in zip(times.values(), costs([*times]), strict=True))


def _fitting(tree: SequenceTree, lengths: Sequence[int], budget: int) -> list[SequenceTree]:
    """Divide a tree until each part has at most `budget` tokens, or is one sequence."""
    if len(tree.rows) == 1 or tree.tokens(lengths) <= budget:
        return [tree]
    return [part for half in tree.halves() for part in _fitting(half, lengths, budget)]


def _rows_of(groups: Sequence[Sequence[int]], parts: Sequence[SequenceTree]) -> list[list[int]]:
    return [sorted(row for index in group for row in parts[index].rows) for group in groups]
