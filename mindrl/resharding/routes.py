"""Choose the sender and the round of each bundle for each rank.

A rank reads a bundle of slices from itself if it can, else from a holder on its node, else from any
holder. It reads all bundles of a way from one sender, because a collective library opens a
connection for each pair of ranks. The bytes that a rank sends in a round are bounded, and so are
those it receives.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mindrl.models.sharding import Sharding
from mindrl.resharding.senders import WaySenders, ranks_by_shard
from mindrl.resharding.slices import SMALL_PART, Indices, Integers, Slices

_MOST_SIZES = 8
"""Number of distinct sizes; others are rounded up to the next of these."""
_AT_ONCE = 1 << 16
"""Routes whose numbers are Python objects at the same time."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """One entry for each bundle and each rank that receives it; arrays of equal length."""

    bundle: Indices
    """Index of the bundle."""
    source: Indices
    """Rank that reads the bundle."""
    target: Indices
    """Rank that writes the bundle."""
    nbytes: Integers
    per_round: int
    """Bound on the bytes that a rank sends in a round, and on those it receives."""

    @cached_property
    def round(self) -> Indices:
        """Round in which the bundle is sent, or copied if both ranks are the same.

        Computed at first access, because the bytes between ranks do not depend on it.
        """
        return assign_rounds(self)


def assign_rounds(routes: Routes) -> Indices:
    """Return for each route the first round with room for it on both ranks: wide ones first.

    A local copy is not a message. It gets the round of the last message before it to the same rank,
    so that tensors are completed one after another.
    """
    world = int(max(routes.source.max(initial=-1), routes.target.max(initial=-1))) + 1
    half = routes.nbytes > routes.per_round // 2
    small = routes.nbytes <= routes.per_round // SMALL_PART
    found = np.zeros(len(half), dtype=np.int32)
    of_half = np.flatnonzero(half)
    sources, targets = routes.source[of_half], routes.target[of_half]
    found[of_half] = _each_alone(sources, targets, world)
    rooms = _Rooms(routes, world, found, of_half[sources != targets])
    for some in (np.flatnonzero(~half & ~small), np.flatnonzero(small)):
        found[some] = rooms.take(routes, some)
    return found


def _each_alone(sources: Indices, targets: Indices, world: int) -> Indices:
    """Return the rounds of routes of which no two fit in one round of a rank."""
    # For each rank, a bit for every round that is taken.
    sent, received, reached = [0] * world, [0] * world, [0] * world
    rounds = array("i")
    for sender, receiver in _in_parts(sources, targets):
        if sender != receiver:
            bits = sent[sender] | received[receiver]
            free = ~bits & (bits + 1)
            sent[sender] |= free
            received[receiver] |= free
            reached[receiver] = max(free.bit_length() - 1, reached[receiver])
            rounds.append(free.bit_length() - 1)
        else:
            rounds.append(reached[receiver])
    return np.array(rounds, dtype=np.int32)


def _in_parts(*columns: Integers | Indices) -> Iterator[tuple[int, ...]]:
    """Yield the rows of the columns: a Python number takes several times an array's memory."""
    for start in range(0, len(columns[0]), _AT_ONCE):
        part = [column[start : start + _AT_ONCE].tolist() for column in columns]
        yield from zip(*part, strict=True)


def choose_senders(
    slices: Slices, source: Sharding, target: Sharding, nodes: Integers, per_round: int
) -> Routes:
    """Choose a sender for each bundle and each rank that needs it.

    `nodes` has the node of each rank; `per_round` is that of the routes.
    """
    bundles = slices.bundles
    chosen = WaySenders.chosen(slices.bytes_by_way, source, target, nodes.tolist())
    counts = chosen.counts[bundles.way]
    index = np.repeat(np.arange(len(bundles.way), dtype=np.int32), counts)
    # The readers of a way are adjacent in the columns of the senders.
    first_of_bundle = np.cumsum(counts) - counts
    offsets = (chosen.first[bundles.way] - first_of_bundle).astype(np.int32)
    place = np.arange(len(index), dtype=np.int32) + np.repeat(offsets, counts)
    senders = chosen.sender[place]
    for split in chosen.splits:
        ours = np.flatnonzero(bundles.way == split.way)
        at = first_of_bundle[ours] + split.reader
        # Each sender gets bundles in order, up to its share of the bytes.
        before = np.cumsum(bundles.nbytes[ours]) - bundles.nbytes[ours]
        senders[at] = np.array(split.senders)[np.searchsorted(split.until, before, side="right")]
    return Routes(
        bundle=index,
        source=senders,
        target=chosen.reader[place],
        nbytes=bundles.nbytes[index],
        per_round=per_round,
    )


def missing_bytes(slices: Slices, source: Sharding, target: Sharding) -> Integers:
    """Return the bytes that each rank needs and does not hold: no plan receives less."""
    holding, needing = ranks_by_shard(source), ranks_by_shard(target)
    missing = np.zeros(len(source.held_by), dtype=np.int64)
    for way, size in slices.bytes_by_way.items():
        holders = {rank for shard in way.source_shards for rank in holding[shard]}
        missing[[rank for rank in needing.get(way.target_shard, []) if rank not in holders]] += size
    return missing


def _distinct_sizes(sizes: Integers) -> list[int]:
    """Return the distinct sizes, or a selection with the largest if there are many."""
    found: list[int] = np.unique(sizes).tolist()
    step = -(-len(found) // _MOST_SIZES)
    return found if step <= 1 else sorted({*found[::step], found[-1]})


class _Rooms:
    """Free room in the rounds of all ranks, in both directions."""

    def __init__(self, routes: Routes, world: int, rounds: Indices, placed: Integers) -> None:
        """Start with the `placed` routes in their rounds, at most one for a rank in each."""
        remote = (routes.source != routes.target) & (routes.nbytes <= routes.per_round // 2)
        self.sizes = _distinct_sizes(routes.nbytes[remote])
        opened = int(rounds.max(initial=-1)) + 1
        self.ways = []
        for ranks in (routes.source, routes.target):
            room = np.full((world, opened), routes.per_round, dtype=np.int64)
            room[ranks[placed], rounds[placed]] -= routes.nbytes[placed]
            self.ways.append([_Rounds(routes.per_round, self.sizes, each) for each in room])

    def take(self, routes: Routes, some: Integers) -> Indices:
        """Take room for some of the routes in order; return the round of each."""
        nbytes = routes.nbytes[some]
        kinds = np.searchsorted(self.sizes, nbytes)
        reached = [0] * len(self.ways[0])
        rounds = array("i")
        outgoing, incoming = self.ways
        # The largest size that fits, by the number of sizes that fit.
        widest = [0, *self.sizes]
        # A hundred ranks that share all weights have a million routes: a few operations each.
        for sender, receiver, size, kind in _in_parts(
            routes.source[some], routes.target[some], nbytes, kinds
        ):
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
                if left < widest[each.fitting[at]]:
                    each.narrow(at, left)
            reached[receiver] = max(at, reached[receiver])
            rounds.append(at)
        return np.array(rounds, dtype=np.int32)


class _Rounds:
    """Free room in the rounds of one rank, in one direction."""

    __slots__ = ("distinct_sizes", "fitting", "full", "per_round", "room")

    def __init__(self, per_round: int, distinct_sizes: list[int], room: Integers) -> None:
        self.per_round = per_round
        self.distinct_sizes = distinct_sizes
        self.room = array("q", room.tobytes())
        """Bytes left in each round that has been opened."""
        fitting = np.searchsorted(distinct_sizes, room, side="right")
        self.fitting = array("b", fitting.astype(np.int8).tobytes())
        """How many of the sizes, from the smallest, still fit in each round."""
        self.full = [_bits(fitting <= kind) for kind in range(len(distinct_sizes))]
        """For each size, a bit for every round without room for it."""

    def open(self, at: int) -> None:
        """Add rounds up to and including `at`."""
        new = at + 1 - len(self.room)
        self.room.extend([self.per_round] * new)
        self.fitting.extend([len(self.distinct_sizes)] * new)

    def narrow(self, at: int, left: int) -> None:
        """Mark the sizes that no longer fit in a round."""
        fitting = self.fitting[at]
        while fitting and self.distinct_sizes[fitting - 1] > left:
            fitting -= 1
            self.full[fitting] |= 1 << at
        self.fitting[at] = fitting


def _bits(is_set: NDArray[np.bool_]) -> int:
    """Return an integer whose bit n is element n."""
    return int.from_bytes(np.packbits(is_set, bitorder="little").tobytes(), "little")
