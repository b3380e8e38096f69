"""Who sends each slice to whom, and in which round.

A rank reads what it needs from itself, then from its own node, then from whoever has sent least.
In a round, what a rank sends is bounded, and what it receives.
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
"""Sizes that are told apart; others count as the next larger one of these."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """One entry for each slice on its way to one rank; arrays of equal length."""

    slice: Integers
    """Index of the slice."""
    source: Integers
    """The rank that it is read on."""
    target: Integers
    """The rank that it is written on."""
    nbytes: Integers
    per_round: int
    """Bound on the bytes that a rank sends in a round, and on what it receives."""

    @cached_property
    def round(self) -> Integers:
        """The round that it travels in, or is copied in where both ranks are the same.

        Made when it is asked for: what travels between whom is known without.
        """
        return assign_rounds(self)


def assign_rounds(routes: Routes) -> Integers:
    """Give each route the first round with room for it on both ranks.

    A local copy takes part in no message; it goes with the round of the last message before it to
    the same rank, so that tensors are completed one after the other.
    """
    world = int(max(routes.source.max(initial=-1), routes.target.max(initial=-1))) + 1
    told_apart = _told_apart(routes.nbytes[routes.source != routes.target])
    kinds = np.searchsorted(told_apart, routes.nbytes)
    outgoing, incoming = (
        [_Rounds(routes.per_round, told_apart) for _ in range(world)] for _ in range(2)
    )
    reached = [0] * world
    rounds = []
    columns = [each.tolist() for each in (routes.source, routes.target, routes.nbytes, kinds)]
    # Of a hundred ranks that share all weights there are millions: each is a few operations.
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
    # Most ways leave no choice, and one sender may have a hundred readers.
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
    """Who sends what takes a way, where no reader has a choice."""

    senders: list[int]
    """One for each reader."""
    remote: list[tuple[int, int]]
    """Senders with the number of others that read from them."""


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
    """Return whom each rank that reads what takes a way may ask: itself alone if it holds it."""
    own = {rank for shard in way.source_shards for rank in holding[shard]}
    ranks, holders = needing.get(way.target_shard, []), sorted(own)
    near = {
        node: [rank for rank in holders if nodes[rank] == node] or holders
        for node in {nodes[rank] for rank in ranks}
    }
    return {at: [at] if at in own else near[nodes[at]] for at in ranks}


def missing_bytes(slices: Slices, source: Sharding, target: Sharding) -> Integers:
    """Add up, for each rank, what it needs and does not hold: no plan receives less."""
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


def _told_apart(sizes: Integers) -> list[int]:
    """Return the sizes, or some of them and the largest."""
    found: list[int] = np.unique(sizes).tolist()
    step = -(-len(found) // _MOST_SIZES)
    return found if step <= 1 else sorted({*found[::step], found[-1]})


class _Rounds:
    """How full the rounds of one rank are, one way."""

    __slots__ = ("fitting", "full", "per_round", "room", "told_apart", "widest")

    def __init__(self, per_round: int, told_apart: list[int]) -> None:
        self.per_round = per_round
        self.told_apart = told_apart
        self.room: list[int] = []
        """In bytes, of each round that anything is in."""
        self.fitting: list[int] = []
        """How many of the sizes still have room in each round: the smallest ones."""
        self.widest: list[int] = []
        """The largest of them, 0 where there is none."""
        self.full = [0] * len(told_apart)
        """For each size, a bit for every round that has no room for it."""

    def open(self, at: int) -> None:
        """Begin rounds, up to one."""
        new = at + 1 - len(self.room)
        self.room += [self.per_round] * new
        self.fitting += [len(self.told_apart)] * new
        self.widest += [self.told_apart[-1]] * new

    def narrow(self, at: int, left: int) -> None:
        """Say for which sizes a round has no room any more."""
        fitting = self.fitting[at]
        while fitting and self.told_apart[fitting - 1] > left:
            fitting -= 1
            self.full[fitting] |= 1 << at
        self.fitting[at] = fitting
        self.widest[at] = self.told_apart[fitting - 1] if fitting else 0
