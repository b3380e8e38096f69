"""Where each rank reads what it needs: itself, then its own node, then whoever has sent least."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindrl.models.sharding import Sharding
from mindrl.resharding.cells import Cells, Way

Counts = NDArray[np.int64]


def choose_senders(
    cells: Cells, source: Sharding, target: Sharding, nodes: Sequence[int]
) -> tuple[Counts, Counts, Counts]:
    """Choose a sender for each cell and each rank that needs it, cell by cell.

    Args:
        cells: What travels.
        source: Who holds it.
        target: Who needs it.
        nodes: The node of each rank.

    Returns:
        Index of the cell, sender, receiver: equally long.
    """
    holding, needing = _ranks_by_shard(source), _ranks_by_shard(target)
    readers = [_readers(way, holding, needing, nodes) for way in cells.ways]
    sent = [0] * len(source.held_by)
    senders: list[int] = []
    receivers: list[int] = []
    for way, size in zip(cells.way.tolist(), cells.wire_bytes.tolist(), strict=True):
        ranks, choices = readers[way]
        receivers += ranks
        for rank, nearest in zip(ranks, choices, strict=True):
            sender = nearest[0] if len(nearest) == 1 else min(nearest, key=sent.__getitem__)
            if sender != rank:
                sent[sender] += size
            senders.append(sender)
    counts = np.array([len(ranks) for ranks, _ in readers], dtype=np.int64)[cells.way]
    index = np.repeat(np.arange(len(cells), dtype=np.int64), counts)
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
