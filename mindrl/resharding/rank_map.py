"""Choose the training rank order that needs the fewest bytes to reshard.

In colocation the rollout engine numbers its ranks in a fixed order, but any rank may hold any
training shard. The minimum over all permutations is an assignment problem. The groups of a training
engine do not support every permutation: the engine lists its legal orders.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.sharding import Sharding
from mindrl.resharding.plan import Topology
from mindrl.resharding.slices import Integers, Slices

LegalOrders = Callable[[RankOrder, int], Iterable[RankOrder]]
"""Returns the legal orders of a grid, given the engine's own order and the ranks per node."""


@dataclass(frozen=True, kw_only=True)
class RankMap:
    """The training layout in the chosen order, and the bytes that orders would move."""

    layout: TrainLayout
    """Layout with `order` and `expert_order` if they differ from the engine's own."""
    applied_bytes: int
    """Bytes that all ranks together receive in the chosen order."""
    costs: Integers
    """Bytes that a rank (column) receives in the place of a rank of the engine's own order
    (row)."""


def choose_orders(
    layout: TrainLayout,
    source: Sharding,
    target: Sharding,
    slices: Slices,
    topology: Topology,
    legal_orders: LegalOrders,
) -> RankMap:
    """Find the order of the training ranks for which the reshard moves the fewest bytes.

    Ties go to the engine's own order, then to the one with the narrowest tensor groups. `layout`
    must be in the engine's own order; `source` lists for each rank the shard of its place in the
    dense grid and, for a model with experts, of its place in the expert grid.
    """
    needed, gains = _gains(source, target, slices)
    costs = [needed - np.sum([gains[name] for name in held], axis=0) for held in source.held_by]
    own_orders = [layout.dense_order, layout.experts_order][: len(source.held_by[0])]
    dense, *experts = (
        _best_by_stages(own, legal_orders(own, topology.ranks_per_node), gains, names)
        for own, names in zip(own_orders, zip(*source.held_by, strict=True), strict=True)
    )
    if not experts:
        experts = [{stages: each._replace(gained=0) for stages, each in dense.items()}]
    # Both grids must give every rank the same stage.
    pairs = [(each, experts[0][stages]) for stages, each in dense.items() if stages in experts[0]]
    one, other = min(
        pairs, key=lambda pair: (-(pair[0].gained + pair[1].gained), pair[0].place, pair[1].place)
    )
    return RankMap(
        layout=layout.in_order(one.order, other.order if len(own_orders) > 1 else None),
        applied_bytes=int(needed.sum()) - one.gained - other.gained,
        costs=np.stack(costs),
    )


def _gains(
    source: Sharding, target: Sharding, slices: Slices
) -> tuple[Integers, dict[str, Integers]]:
    """Return the bytes that each target rank needs, and those that each source shard supplies."""
    needed: Counter[str] = Counter()
    shared: dict[str, Counter[str]] = {name: Counter() for name in source.shards}
    for (shard, holders), size in slices.bytes_by_way.items():
        needed[shard] += size
        for holder in set(holders):
            shared[holder][shard] += size

    def by_rank(sizes: Mapping[str, int]) -> Integers:
        return np.array([sum(sizes[name] for name in held) for held in target.held_by])

    return by_rank(needed), {name: by_rank(sizes) for name, sizes in shared.items()}


class _Candidate(NamedTuple):
    """An order of one grid, and the bytes that it saves."""

    order: RankOrder
    gained: int
    place: tuple[bool, int, int]
    """Tie-breaker, lowest first: not the engine's own, width of the groups, number of digits."""


def _best_by_stages(
    own: RankOrder,
    orders: Iterable[RankOrder],
    gains: Mapping[str, Integers],
    names: Sequence[str],
) -> dict[bytes, _Candidate]:
    """Return the best legal order of one grid for each assignment of stages to ranks.

    `names` has the shard of each rank in the engine's own order.
    """
    shard_at = dict(zip(map(_nonzero, own.coordinates), names, strict=True))
    found = []
    for order in orders:
        shards = [shard_at[_nonzero(at)] for at in order.coordinates]
        gained = sum(int(gains[name][rank]) for rank, name in enumerate(shards))
        place = order != own, order.width(own.digits[0][0]), len(order.digits)
        stages = np.array([at.get("pp", 0) for at in order.coordinates]).tobytes()
        found.append((-gained, place, stages, order))
    best: dict[bytes, _Candidate] = {}
    for lost, place, stages, order in sorted(found, key=lambda each: each[:2]):
        best.setdefault(stages, _Candidate(order, -lost, place))
    return best


def _nonzero(coordinates: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((name, at) for name, at in coordinates.items() if at)
