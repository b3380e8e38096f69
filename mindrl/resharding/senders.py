"""Choose which rank sends a way to each of its readers.

All ranks of a plan choose alike, so no choice depends on the order of a set or on a fraction.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from mindrl.models.sharding import Sharding
from mindrl.resharding.slices import Indices, Integers, Way

_SWEEPS = 3
"""How often each demand is balanced against all others; later sweeps change little."""
_SLACK = 100
"""A sender may send this fraction more than the busiest sender of a perfect balance."""

Holders = tuple[int, ...]
"""Ranks that can send the same bytes to a reader, in ascending order."""


class Split(NamedTuple):
    """Senders that share one reader of a way, because one alone would send too much."""

    way: int
    reader: int
    """Index among the readers of the way."""
    senders: list[int]
    until: list[int]
    """Byte of the way at which each sender's share ends, except that of the last one."""


class _Pair(NamedTuple):
    """A reader of a way that may choose its sender."""

    nbytes: int
    place: int
    """Index in the columns of `WaySenders`."""
    reader: int
    holders: Holders


@dataclass(frozen=True, kw_only=True)
class WaySenders:
    """One entry for each way and each rank that reads it, way by way; columns of equal length."""

    reader: Indices
    sender: Indices
    first: Integers
    """Index of the first entry of each way."""
    counts: Integers
    """Number of entries of each way."""
    splits: Sequence[Split]

    @classmethod
    def chosen(
        cls,
        bytes_by_way: Mapping[Way, int],
        source: Sharding,
        target: Sharding,
        nodes: Sequence[int],
    ) -> "WaySenders":
        """Choose the senders: the widest ways first, and ranks that are already connected first.

        A rank that would send more than the busiest sender of a perfect balance is passed over.
        `nodes` has the node of each rank.
        """
        needing, near = ranks_by_shard(target), _Nearest(ranks_by_shard(source), nodes)
        readers: list[int] = []
        senders: list[int] = []
        counts, pairs = [], []
        links = _Links(len(source.held_by))
        for way, nbytes in bytes_by_way.items():
            ranks = needing.get(way.target_shard, [])
            counts.append(len(ranks))
            for rank in ranks:
                holders = near(way.source_shards, rank)
                if len(holders) > 1:
                    pairs.append(_Pair(nbytes, len(senders), rank, holders))
                elif holders[0] != rank:
                    links.add(holders[0], rank, nbytes)
                readers.append(rank)
                senders.append(holders[0])
        first = [0, *accumulate(counts)]
        limit = _fair_limit(links.sent, pairs)
        shared = []
        for pair in sorted(pairs, key=lambda pair: (-pair.nbytes, pair.place)):
            shares = links.choose(pair, limit)
            senders[pair.place] = shares[0][0]
            if len(shares) > 1:
                shared.append((pair.place, shares))
        return cls(
            reader=np.array(readers, dtype=np.int32),
            sender=np.array(senders, dtype=np.int32),
            first=np.array(first[:-1], dtype=np.int64),
            counts=np.array(counts, dtype=np.int64),
            splits=[_split(first, place, shares) for place, shares in shared],
        )


def _split(first: Sequence[int], place: int, shares: Sequence[tuple[int, int]]) -> Split:
    way = int(np.searchsorted(first, place, side="right")) - 1
    until = [*accumulate(nbytes for _, nbytes in shares)]
    return Split(way, place - first[way], [rank for rank, _ in shares], until[:-1])


class _Links:
    """Bytes that ranks send, and which ranks are connected."""

    def __init__(self, world_size: int) -> None:
        self.sent = [0] * world_size
        self.peers: list[set[int]] = [set() for _ in range(world_size)]

    def add(self, sender: int, reader: int, nbytes: int) -> None:
        """Send bytes."""
        self.sent[sender] += nbytes
        self.peers[sender].add(reader)
        self.peers[reader].add(sender)

    def choose(self, pair: _Pair, limit: int) -> list[tuple[int, int]]:
        """Choose the senders of a pair; return each with its bytes: one, if it has room."""
        nbytes, _, reader, holders = pair
        sent = self.sent
        known = self.peers[reader].intersection(holders)
        best = min(known, key=lambda rank: (sent[rank], rank), default=None)
        if best is None or sent[best] + nbytes > limit:
            best = min(holders, key=sent.__getitem__)
        shares = [(best, nbytes)]
        if sent[best] + nbytes > limit:
            shares = self._shared(nbytes, holders, limit)
        for rank, part in shares:
            self.add(rank, reader, part)
        return shares

    def _shared(self, nbytes: int, holders: Holders, limit: int) -> list[tuple[int, int]]:
        """Divide bytes over as few holders as have room for them, else over all."""
        emptiest = sorted(holders, key=self.sent.__getitem__)
        room = accumulate(limit - self.sent[rank] for rank in emptiest)
        enough = next((count for count, free in enumerate(room, 1) if free >= nbytes), len(holders))
        parts = _levelled([self.sent[rank] for rank in emptiest[:enough]], nbytes)
        return [(rank, part) for rank, part in zip(emptiest, parts, strict=False) if part]


def _fair_limit(fixed: Sequence[int], pairs: Sequence[_Pair]) -> int:
    """Return what the busiest rank sends if every pair is divided evenly, and a little more.

    `fixed` has the bytes that ranks send without a choice.
    """
    demands: defaultdict[Holders, int] = defaultdict(int)
    for pair in pairs:
        demands[pair.holders] += pair.nbytes
    load, parts = [*fixed], {holders: [0] * len(holders) for holders in demands}
    for _ in range(_SWEEPS):
        for holders, nbytes in demands.items():
            others = [load[rank] - own for rank, own in zip(holders, parts[holders], strict=True)]
            order = sorted(range(len(holders)), key=others.__getitem__)
            added = _levelled([others[at] for at in order], nbytes)
            for at, part in zip(order, added, strict=True):
                parts[holders][at] = part
                load[holders[at]] = others[at] + part
    most = max(load, default=0)
    return most + most // _SLACK


def _levelled(loads: Sequence[int], nbytes: int) -> list[int]:
    """Return what to add to each of the ascending loads, so that the lowest become equal."""
    below, count = 0, 0
    for count, load in enumerate(loads, 1):
        below += load
        if count == len(loads) or loads[count] * count - below >= nbytes:
            break
    level, more = divmod(below + nbytes, count)
    parts = [level + (at < more) - load for at, load in enumerate(loads[:count])]
    return parts + [0] * (len(loads) - count)


class _Nearest:
    """Ranks that can send a way to a rank: only itself, if it can, else those on its node."""

    def __init__(self, holding: Mapping[str, Sequence[int]], nodes: Sequence[int]) -> None:
        self.nodes = nodes

        @cache
        def places(shards: tuple[str, ...]) -> tuple[Holders, dict[int, Holders]]:
            ranks = tuple(sorted({rank for shard in shards for rank in holding[shard]}))
            by_node: defaultdict[int, list[int]] = defaultdict(list)
            for rank in ranks:
                by_node[nodes[rank]].append(rank)
            return ranks, {node: tuple(found) for node, found in by_node.items()}

        self.places = places

    def __call__(self, shards: tuple[str, ...], reader: int) -> Holders:
        """Return the possible senders of a reader."""
        anywhere, on_node = self.places(shards)
        near = on_node.get(self.nodes[reader], anywhere)
        return (reader,) if reader in near else near


def ranks_by_shard(sharding: Sharding) -> dict[str, list[int]]:
    """Return the ranks that hold each shard."""
    ranks: dict[str, list[int]] = {}
    for rank, shards in enumerate(sharding.held_by):
        for shard in shards:
            ranks.setdefault(shard, []).append(rank)
    return ranks
