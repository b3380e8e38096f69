"""Choose the sender of each bundle for each rank.

A rank reads a bundle of slices from itself if it can, else from a holder on its node, else from any
holder. It reads all bundles of a way from one sender, because a collective library opens a
connection for each pair of ranks. The bytes that a rank sends in a round are bounded, and so are
those it receives.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mindrl.models.sharding import Sharding
from mindrl.resharding.rounds import Deliveries, assign_rounds
from mindrl.resharding.senders import WaySenders, ranks_by_shard
from mindrl.resharding.slices import Indices, Integers, Slices


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
        return assign_rounds(Deliveries(self.source, self.target, self.nbytes), self.per_round)


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
