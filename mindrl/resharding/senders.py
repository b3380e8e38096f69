"""Where each rank reads what it needs: itself, then its own node, then whoever has sent least."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mindrl.models.sharding import Sharding
from mindrl.resharding.slices import Integers, Slices, Way


def choose_senders(
    slices: Slices, source: Sharding, target: Sharding, nodes: Sequence[int]
) -> tuple[Integers, Integers, Integers]:
    """Choose a sender for each slice and each rank that needs it, slice by slice.

    Args:
        slices: What travels.
        source: Who holds it.
        target: Who needs it.
        nodes: The node of each rank.

    Returns:
        Index of the slice, sender, receiver: equally long.
    """
    holding, needing = _ranks_by_shard(source), _ranks_by_shard(target)
    readers = [_readers(way, holding, needing, nodes) for way in slices.ways]
    sent = [0] * len(source.held_by)
    senders: list[int] = []
    receivers: list[int] = []
    for way, size in zip(slices.way.tolist(), slices.wire_bytes.tolist(), strict=True):
        ranks, choices = readers[way]
        receivers += ranks
        for rank, nearest in zip(ranks, choices, strict=True):
            sender = nearest[0] if len(nearest) == 1 else min(nearest, key=sent.__getitem__)
            if sender != rank:
                sent[sender] += size
            senders.append(sender)
    counts = np.array([len(ranks) for ranks, _ in readers], dtype=np.int64)[slices.way]
    index = np.repeat(np.arange(len(slices), dtype=np.int64), counts)
    return index, np.array(senders, dtype=np.int64), np.array(receivers, dtype=np.int64)


class _Readers(NamedTuple):
    """Who reads what takes one way."""

    ranks: list[int]
    choices: list[list[int]]
    """Who each may read from: itself alone where it holds a source shard."""


def _readers(
    way: Way,
    holding: Mapping[str, list[int]],
    needing: Mapping[str, list[int]],
    nodes: Sequence[int],
) -> _Readers:
    holders = sorted({rank for shard in way.source_shards for rank in holding[shard]})
    ranks = needing.get(way.target_shard, [])
    own = set(holders)
    near = {
        node: [rank for rank in holders if nodes[rank] == node] or holders
        for node in {nodes[rank] for rank in ranks}
    }
    return _Readers(ranks, [[at] if at in own else near[nodes[at]] for at in ranks])


def _ranks_by_shard(sharding: Sharding) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, shards in enumerate(sharding.held_by):
        for shard in shards:
            ranks.setdefault(shard, []).append(rank)
    return ranks
