"""Which rank takes which place of the training layout: the fewest bytes to reshard.

In colocation the rollout engine numbers its ranks as they come; which rank holds which training
shard is free. The fewest bytes over all permutations is an assignment problem. The groups of a
training engine cannot follow every permutation: it says which orders it can be given.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.sharding import Sharding
from mindrl.resharding.plan import Topology
from mindrl.resharding.slices import Slices

Matrix = NDArray[np.int64]
LegalOrders = Callable[[RankOrder, int], Iterable[RankOrder]]
"""The orders that a grid can be given, by its own order and the ranks of a node."""


@dataclass(frozen=True, kw_only=True)
class RankMap:
    """The training layout with the order that was chosen, and what the choices would move."""

    layout: TrainLayout
    """With `order` and `expert_order` set where they are not the engine's own."""
    applied_bytes: int
    """Received by all ranks together with the chosen order."""
    costs: Matrix
    """Bytes that a rank (column) receives in the place of one of the engine's own order (row)."""
    topology: Topology

    @property
    def default_bytes(self) -> int:
        """Received by all ranks together in the engine's own order."""
        return int(self.costs.diagonal().sum())

    @cached_property
    def best_in_nodes_bytes(self) -> int:
        """The fewest over all permutations of the ranks of each node."""
        nodes = np.array([self.topology.node_of(rank) for rank in range(len(self.costs))])
        return sum(
            _assignment(self.costs[np.ix_(nodes == node, nodes == node)])
            for node in np.unique(nodes)
        )

    @cached_property
    def best_bytes(self) -> int:
        """The fewest over all permutations of all ranks, or with the chosen order if that is less.

        A permutation keeps together what a rank of the default order holds of the dense weights
        and of the experts; an order may pair them anew.
        """
        return min(_assignment(self.costs), self.applied_bytes)


def choose_orders(
    layout: TrainLayout,
    source: Sharding,
    target: Sharding,
    slices: Slices,
    topology: Topology,
    legal_orders: LegalOrders,
) -> RankMap:
    """Find the order of the training ranks that makes the reshard move the fewest bytes.

    Among equals the engine's own order wins, then the one with the narrowest tensor groups.

    Args:
        layout: Of the training ranks, in the engine's own order.
        source: Who holds the weights in this layout: of each rank the shard of its place in the
            dense grid, and for a model with experts that of its place in the expert grid.
        target: Who needs them, of as many ranks.
        slices: What travels between the two.
        topology: Which ranks share a node.
        legal_orders: Of the training engine.
    """
    gains = _Gains(source, target, slices)
    costs = np.stack([gains.needed - gains.of_shards(shards) for shards in source.held_by])
    grids = [layout.dense_order, layout.experts_order][: len(source.held_by[0])]
    dense, *experts = (
        _best_by_stages(_candidates(own, legal_orders(own, topology.ranks_per_node), gains, names))
        for own, names in zip(grids, zip(*source.held_by, strict=True), strict=True)
    )
    chosen, gained = _best_pair(layout, dense, experts[0] if experts else None)
    return RankMap(
        layout=chosen,
        applied_bytes=int(gains.needed.sum()) - gained,
        costs=costs,
        topology=topology,
    )


class _Gains:
    """Bytes that each rank of the target side need not receive, by the source shard it holds."""

    def __init__(self, source: Sharding, target: Sharding, slices: Slices) -> None:
        needed: dict[str, int] = {}
        shared: dict[str, dict[str, int]] = {name: {} for name in source.shards}
        for (shard, holders), size in slices.bytes_by_way.items():
            needed[shard] = needed.get(shard, 0) + size
            for holder in set(holders):
                shared[holder][shard] = shared[holder].get(shard, 0) + size
        self.needed = _by_rank(target, needed)
        self.by_shard = {name: _by_rank(target, gains) for name, gains in shared.items()}

    def of_shards(self, shards: Iterable[str]) -> Matrix:
        """Add up over the shards of one place; int64 [rank]."""
        gained: Matrix = np.sum([self.by_shard[name] for name in shards], axis=0)
        return gained


def _by_rank(sharding: Sharding, sizes: Mapping[str, int]) -> Matrix:
    return np.array([sum(sizes.get(name, 0) for name in held) for held in sharding.held_by])


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """An order, what it saves, and which stage it gives to each rank."""

    order: RankOrder
    gained: int
    stages: bytes
    rank: tuple[bool, int, int]
    """Among equals the lowest wins: not the engine's own, width of the groups, digits."""

    def place(self) -> tuple[int, tuple[bool, int, int]]:
        """Return what sorts the best one first."""
        return -self.gained, self.rank


def _candidates(
    own: RankOrder, orders: Iterable[RankOrder], gains: _Gains, names: Sequence[str]
) -> Iterator[_Candidate]:
    """Judge the legal orders of one grid.

    Args:
        own: The engine's own order.
        orders: The legal ones.
        gains: Of each shard on each rank.
        names: The shard of each rank in the engine's own order.
    """
    at_place = dict(zip(map(_place, own.coordinates), names, strict=True))
    for order in orders:
        shards = [at_place[_place(at)] for at in order.coordinates]
        gained = sum(int(gains.by_shard[name][rank]) for rank, name in enumerate(shards))
        stages = np.array([at.get("pp", 0) for at in order.coordinates]).tobytes()
        width = order.width(own.digits[0][0])
        rank = order != own, width, len(order.digits)
        yield _Candidate(order=order, gained=gained, stages=stages, rank=rank)


def _place(coordinates: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, at) for name, at in coordinates.items() if at))


def _best_pair(
    own: TrainLayout, dense: Mapping[bytes, _Candidate], experts: Mapping[bytes, _Candidate] | None
) -> tuple[TrainLayout, int]:
    """Choose one order for each grid so that both give every rank the same stage."""
    if experts is None:
        alone = min(dense.values(), key=_Candidate.place)
        return own.in_order(alone.order, None), alone.gained
    pairs = [(each, experts[stages]) for stages, each in dense.items() if stages in experts]
    one, other = min(
        pairs, key=lambda pair: (-(pair[0].gained + pair[1].gained), pair[0].rank, pair[1].rank)
    )
    return own.in_order(one.order, other.order), one.gained + other.gained


def _best_by_stages(candidates: Iterable[_Candidate]) -> dict[bytes, _Candidate]:
    best: dict[bytes, _Candidate] = {}
    for candidate in sorted(candidates, key=_Candidate.place):
        best.setdefault(candidate.stages, candidate)
    return best


def _assignment(costs: Matrix) -> int:
    # Imported late: scipy takes a while, and a run asks for the order alone.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    rows, columns = linear_sum_assignment(costs)
    return int(costs[rows, columns].sum())
