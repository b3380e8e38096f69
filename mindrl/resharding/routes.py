"""Choose the sender and the round of each slice for each rank.

A rank reads a slice from itself if it can, else from a holder on its node, else from any holder;
among several, from the one that has sent least. The bytes that a rank sends in a round are bounded,
and so are those it receives.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mindrl.models.sharding import Sharding
from mindrl.resharding.slices import Integers, Slices, Way

_MOST_SIZES = 32
"""Number of distinct sizes; others are rounded up to the next of these."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """One entry for each slice and each rank that receives it; arrays of equal length."""

    slice: Integers
    """Index of the slice."""
    source: Integers
    """Rank that reads the slice."""
    target: Integers
    """Rank that writes the slice."""
    nbytes: Integers
    per_round: int
    """Bound on the bytes that a rank sends in a round, and on those it receives."""

    @cached_property
    def round(self) -> Integers:
        """Round in which the slice is sent, or copied if both ranks are the same.

        Computed at first access, because the bytes between ranks do not depend on it.
        """
        return assign_rounds(self)


def assign_rounds(routes: Routes) -> Integers:
    """Return for each route the first round with room for it on both ranks.

    A local copy is not a message. It gets the round of the last message before it to the same rank,
    so that tensors are completed one after another.
    """
    world = int(max(routes.source.max(initial=-1), routes.target.max(initial=-1))) + 1
    distinct_sizes = _distinct_sizes(routes.nbytes[routes.source != routes.target])
    kinds = np.searchsorted(distinct_sizes, routes.nbytes)
    outgoing, incoming = (
        [_Rounds(routes.per_round, distinct_sizes) for _ in range(world)] for _ in range(2)
    )
    reached = [0] * world
    rounds = []
    columns = [each.tolist() for each in (routes.source, routes.target, routes.nbytes, kinds)]
    # A hundred ranks that share all weights have millions of routes: a few operations each.
    for sender, receiver, size, kind in zip(*columns, strict=True):
        if sender == receiver:
            rounds.append(reached[receiver])
            continue
        ways = outgoing[sender], incoming[receiver]
        bits = ways[0].full[kind] | ways[1].full[kind]
        at = (~bits & (bits + 1)).bit_length() - 1
        for each in ways:
            if at >= len(each.room):
                each.open(at)
            left = each.room[at] = each.room[at] - size
            if left < each.widest[at]:
                each.narrow(at, left)
        reached[receiver] = max(at, reached[receiver])
        rounds.append(at)
    return np.array(rounds, dtype=np.int64)


def choose_senders(
    slices: Slices, source: Sharding, target: Sharding, nodes: Sequence[int], per_round: int
) -> Routes:
    """Choose a sender for each slice and each rank that needs it, slice by slice.

    `nodes` has the node of each rank; `per_round` is that of the routes.
    """
    holding, needing = _ranks_by_shard(source), _ranks_by_shard(target)
    readers = [_readers(way, holding, needing, nodes) for way in slices.ways]
    sent = [0] * len(source.held_by)
    senders: list[int] = []
    receivers: list[int] = []
    # Most ways have only one choice, and one sender may have a hundred readers.
    settled = [_settled(each) for each in readers]
    for way, size in zip(slices.way.tolist(), slices.wire_bytes.tolist(), strict=True):
        receivers += readers[way]
        if fixed := settled[way]:
            senders += fixed.senders
            for sender, times in fixed.remote:
                sent[sender] += size * times
            continue
        for rank, nearest in readers[way].items():
            sender = nearest[0] if len(nearest) == 1 else min(nearest, key=sent.__getitem__)
            if sender != rank:
                sent[sender] += size
            senders.append(sender)
    counts = np.array([len(ranks) for ranks in readers], dtype=np.int64)[slices.way]
    index = np.repeat(np.arange(len(slices), dtype=np.int64), counts)
    return Routes(
        slice=index,
        source=np.array(senders, dtype=np.int64),
        target=np.array(receivers, dtype=np.int64),
        nbytes=slices.wire_bytes[index],
        per_round=per_round,
    )


class _Settled(NamedTuple):
    """Senders of a way whose readers have no choice."""

    senders: list[int]
    """Sender of each reader."""
    remote: list[tuple[int, int]]
    """Senders with the number of other ranks that read from them."""


def _settled(readers: Mapping[int, list[int]]) -> _Settled | None:
    if any(len(nearest) > 1 for nearest in readers.values()):
        return None
    senders = [nearest[0] for nearest in readers.values()]
    pairs = zip(readers, senders, strict=True)
    remote = Counter(sender for rank, sender in pairs if sender != rank)
    return _Settled(senders, list(remote.items()))


def _readers(
    way: Way,
    holding: Mapping[str, list[int]],
    needing: Mapping[str, list[int]],
    nodes: Sequence[int],
) -> dict[int, list[int]]:
    """Return the possible senders of each rank that reads a way: only itself if it holds it."""
    own = {rank for shard in way.source_shards for rank in holding[shard]}
    ranks, holders = needing.get(way.target_shard, []), sorted(own)
    near = {
        node: [rank for rank in holders if nodes[rank] == node] or holders
        for node in {nodes[rank] for rank in ranks}
    }
    return {at: [at] if at in own else near[nodes[at]] for at in ranks}


def missing_bytes(slices: Slices, source: Sharding, target: Sharding) -> Integers:
    """Return the bytes that each rank needs and does not hold: no plan receives less."""
    holding, needing = _ranks_by_shard(source), _ranks_by_shard(target)
    missing = np.zeros(len(source.held_by), dtype=np.int64)
    for way, size in slices.bytes_by_way.items():
        holders = {rank for shard in way.source_shards for rank in holding[shard]}
        missing[[rank for rank in needing.get(way.target_shard, []) if rank not in holders]] += size
    return missing


def _ranks_by_shard(sharding: Sharding) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, shards in enumerate(sharding.held_by):
        for shard in shards:
            ranks.setdefault(shard, []).append(rank)
    return ranks


def _distinct_sizes(sizes: Integers) -> list[int]:
    """Return the distinct sizes, or a selection with the largest if there are many."""
    found: list[int] = np.unique(sizes).tolist()
    step = -(-len(found) // _MOST_SIZES)
    return found if step <= 1 else sorted({*found[::step], found[-1]})


class _Rounds:
    """Free room in the rounds of one rank, in one direction."""

    __slots__ = ("distinct_sizes", "fitting", "full", "per_round", "room", "widest")

    def __init__(self, per_round: int, distinct_sizes: list[int]) -> None:
        self.per_round = per_round
        self.distinct_sizes = distinct_sizes
        self.room: list[int] = []
        """Bytes left in each round that has been opened."""
        self.fitting: list[int] = []
        """How many of the sizes, from the smallest, still fit in each round."""
        self.widest: list[int] = []
        """The largest of them, 0 if none fits."""
        self.full = [0] * len(distinct_sizes)
        """For each size, a bit for every round without room for it."""

    def open(self, at: int) -> None:
        """Add rounds up to and including `at`."""
        new = at + 1 - len(self.room)
        self.room += [self.per_round] * new
        self.fitting += [len(self.distinct_sizes)] * new
        self.widest += [self.distinct_sizes[-1]] * new

    def narrow(self, at: int, left: int) -> None:
        """Mark the sizes that no longer fit in a round."""
        fitting = self.fitting[at]
        while fitting and self.distinct_sizes[fitting - 1] > left:
            fitting -= 1
            self.full[fitting] |= 1 << at
        self.fitting[at] = fitting
        self.widest[at] = self.distinct_sizes[fitting - 1] if fitting else 0
