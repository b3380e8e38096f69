"""Where each rank reads what it needs: itself, then its own node, then whoever has sent least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindrl.models.sharding import Sharding
from mindrl.resharding.cells import Cell

Counts = NDArray[np.int64]


def choose_senders(
    cells: Sequence[Cell], source: Sharding, target: Sharding, nodes: Sequence[int]
) -> tuple[Counts, Counts, Counts, Counts]:
    """Choose a sender for each cell and each rank that needs it, cell by cell.

    Args:
        cells: What travels.
        source: Who holds it.
        target: Who needs it.
        nodes: The node of each rank.

    Returns:
        Index of the cell, which of its source shards is read, sender, receiver: equally long.
    """
    readers = _AllReaders(source, target, nodes)
    sent = [0] * len(source.held_by)
    counts: list[int] = []
    variants: list[int] = []
    senders: list[int] = []
    receivers: list[int] = []
    for cell in cells:
        readers_of, size = readers.of(cell), cell.wire_bytes
        counts.append(len(readers_of.choices))
        for rank, nearest in readers_of.choices:
            sender = nearest[0] if len(nearest) == 1 else min(nearest, key=sent.__getitem__)
            if sender != rank:
                sent[sender] += size
            senders.append(sender)
            receivers.append(rank)
            variants.append(readers_of.variants[sender])
    index = np.repeat(np.arange(len(cells), dtype=np.int64), counts)
    first, second, third = (
        np.array(each, dtype=np.int64) for each in (variants, senders, receivers)
    )
    return index, first, second, third


@dataclass(frozen=True, kw_only=True)
class _Readers:
    """The ranks that need the cells of one target shard and one set of source shards."""

    choices: Sequence[tuple[int, Sequence[int]]]
    """Each rank, and who it may read from: itself alone where it holds a source shard."""
    variants: Mapping[int, int]
    """Which of the source shards a rank holds."""


class _AllReaders:
    """Readers, found once for all cells that have the same."""

    def __init__(self, source: Sharding, target: Sharding, nodes: Sequence[int]) -> None:
        self.nodes = nodes
        self.holding = _ranks_by_shard(source)
        self.needing = _ranks_by_shard(target)
        self.made: dict[tuple[str, tuple[str, ...]], _Readers] = {}

    def of(self, cell: Cell) -> _Readers:
        """Return who needs a cell, and where it can be read."""
        key = cell.target_shard, cell.source_shards
        if key not in self.made:
            self.made[key] = self._make(*key)
        return self.made[key]

    def _make(self, needed: str, shards: tuple[str, ...]) -> _Readers:
        variants: dict[int, int] = {}
        for variant, shard in enumerate(shards):
            for rank in self.holding[shard]:
                variants.setdefault(rank, variant)
        holders, ranks = sorted(variants), self.needing.get(needed, [])
        near = {node: self._nearest(holders, node) for node in {self.nodes[rank] for rank in ranks}}
        return _Readers(
            choices=[(at, [at] if at in variants else near[self.nodes[at]]) for at in ranks],
            variants=variants,
        )

    def _nearest(self, ranks: list[int], node: int) -> list[int]:
        return [rank for rank in ranks if self.nodes[rank] == node] or ranks


def _ranks_by_shard(sharding: Sharding) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, shards in enumerate(sharding.held_by):
        for shard in shards:
            ranks.setdefault(shard, []).append(rank)
    return ranks
