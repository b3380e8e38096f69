"""Which rank takes which place of the training layout: the fewest bytes to reshard.

In colocation the rollout engine numbers its ranks as they come; which rank holds which training
shard is free. The fewest bytes over all permutations is an assignment problem. The engine's groups
cannot follow every permutation: torch sorts the ranks of a group, so coordinates must rise with
the rank. The orders tried here are mixed-radix numberings, in which the sizes of the dimensions
are taken apart into prime digits and the digits are interleaved in every way.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.sharding import Sharding
from mindrl.resharding.cells import Cell, bytes_by_shards
from mindrl.resharding.plan import Topology

Matrix = NDArray[np.int64]
_MOST_ORDERS = 20_000


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
    cells: Iterable[Cell],
    topology: Topology,
) -> RankMap:
    """Find the order of the training ranks that makes the reshard move the fewest bytes.

    Tensor, context and expert groups that lie inside a node in the engine's own order stay inside
    one. Among equals the engine's own order wins, then the one with the narrowest tensor groups.

    Args:
        layout: Of the training ranks, in the engine's own order.
        source: Who holds the weights in this layout.
        target: Who needs them, of as many ranks.
        cells: What travels between the two.
        topology: Which ranks share a node.
    """
    gains = _Gains(source, target, cells)
    costs = np.stack([gains.needed - gains.of_shards(shards) for shards in source.held_by])
    dense = list(_candidates(layout.dense_order, ("tp", "cp"), topology, gains, source, 0))
    has_experts = len(source.held_by[0]) > 1
    experts = (
        list(_candidates(layout.experts_order, ("etp", "ep"), topology, gains, source, 1))
        if has_experts
        else []
    )
    chosen, gained = _best_pair(layout, dense, experts)
    return RankMap(
        layout=chosen,
        applied_bytes=int(gains.needed.sum()) - gained,
        costs=costs,
        topology=topology,
    )


class _Gains:
    """Bytes that each rank of the target side need not receive, by the source shard it holds."""

    def __init__(self, source: Sharding, target: Sharding, cells: Iterable[Cell]) -> None:
        needed: dict[str, int] = {}
        shared: dict[str, dict[str, int]] = {name: {} for name in source.shards}
        for (shard, holders), size in bytes_by_shards(cells).items():
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
    """Among equals the lowest wins: not the default, width of the groups, digits."""


def _candidates(
    default: RankOrder,
    local: tuple[str, str],
    topology: Topology,
    gains: _Gains,
    sharding: Sharding,
    part: int,
) -> Iterator[_Candidate]:
    """Yield the legal orders of one grid; `part` says which shard of a rank belongs to it."""
    names = _shards_by_place(default, sharding, part)
    stay = {name for name in local if _inside_nodes(default, name, topology)}
    for order in islice(_interleavings(default), _MOST_ORDERS):
        legal = _tensor_ranks_lie_closest(order)
        if not legal or not all(_inside_nodes(order, name, topology) for name in stay):
            continue
        shards = [names[_place(at)] for at in order.coordinates]
        gained = sum(int(gains.by_shard[name][rank]) for rank, name in enumerate(shards))
        stages = np.array([at.get("pp", 0) for at in order.coordinates]).tobytes()
        width = _width(order, local[0])
        yield _Candidate(
            order=order,
            gained=gained,
            stages=stages,
            rank=(order != default, width, len(order.digits)),
        )


def _shards_by_place(
    default: RankOrder, sharding: Sharding, part: int
) -> dict[tuple[tuple[str, int], ...], str]:
    """Name the shard of each place in a grid, whatever rank takes it."""
    pairs = zip(default.coordinates, sharding.held_by, strict=True)
    return {_place(at): held[part] for at, held in pairs}


def _place(coordinates: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, at) for name, at in coordinates.items() if at))


def _best_pair(
    plain: TrainLayout, dense: list[_Candidate], experts: list[_Candidate]
) -> tuple[TrainLayout, int]:
    """Choose one order for each grid so that both give every rank the same stage."""
    best_dense = _best_by_stages(dense)
    best_experts = _best_by_stages(experts)
    pairs = [
        (candidate, best_experts.get(stages))
        for stages, candidate in best_dense.items()
        if stages in best_experts or not experts
    ]
    chosen, expert = min(pairs, key=lambda pair: _pair_rank(*pair))
    order = None if chosen.order == plain.dense_order else chosen.order
    if expert is None:
        return replace(plain, order=order, expert_order=_same_stages(order)), chosen.gained
    expert_order = None if expert.order == plain.experts_order else expert.order
    layout = replace(plain, order=order, expert_order=expert_order)
    return layout, chosen.gained + expert.gained


def _same_stages(order: RankOrder | None) -> RankOrder | None:
    """Give an expert grid the stages of an order: the engine makes one for dense models too."""
    if order is None:
        return None
    names = tuple((name if name == "pp" else "dp", radix) for name, radix in order.digits)
    empty = (("etp", 1), ("ep", 1))
    return RankOrder(digits=_merged(names) + empty)


def _best_by_stages(candidates: list[_Candidate]) -> dict[bytes, _Candidate]:
    best: dict[bytes, _Candidate] = {}
    for candidate in sorted(candidates, key=lambda item: (-item.gained, item.rank)):
        best.setdefault(candidate.stages, candidate)
    return best


def _pair_rank(dense: _Candidate, expert: _Candidate | None) -> tuple[object, ...]:
    if expert is None:
        return -dense.gained, dense.rank
    return -(dense.gained + expert.gained), dense.rank, expert.rank


def _interleavings(default: RankOrder) -> Iterator[RankOrder]:
    """Yield every order of the prime digits of all dimensions, the default first."""
    yield default
    left = {name: _prime_factors(radix) for name, radix in default.digits}

    def grow(digits: tuple[tuple[str, int], ...]) -> Iterator[tuple[tuple[str, int], ...]]:
        if not any(left.values()):
            yield digits
            return
        for name, factors in left.items():
            if factors:
                radix = factors.pop()
                yield from grow((*digits, (name, radix)))
                factors.append(radix)

    empty = tuple((name, 1) for name, radix in default.digits if radix == 1)
    seen = {default.digits}
    for digits in grow(()):
        merged = _merged(digits) + empty
        if merged not in seen:
            seen.add(merged)
            yield RankOrder(digits=merged)


def _merged(digits: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Join neighbouring digits of one dimension."""
    joined: list[tuple[str, int]] = []
    for name, radix in digits:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] * radix)
        else:
            joined.append((name, radix))
    return tuple(joined)


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _inside_nodes(order: RankOrder, dimension: str, topology: Topology) -> bool:
    """Say whether every group of a dimension lies inside one node."""
    first: Matrix = np.zeros(1, dtype=np.int64)
    weight = 1
    for name, radix in order.digits:
        if name != dimension:
            first = np.add.outer(first, weight * np.arange(radix)).ravel()
        weight *= radix
    last, per_node = first + _width(order, dimension), topology.ranks_per_node
    return bool((first // per_node == last // per_node).all())


def _tensor_ranks_lie_closest(order: RankOrder) -> bool:
    """Say whether the engine's token dispatcher can use an order: etp before ep."""
    names = [name for name, radix in order.digits if radix > 1 and name in ("etp", "ep")]
    return names == sorted(names, reverse=True)


def _width(order: RankOrder, dimension: str) -> int:
    """Return how far the last rank of a group lies behind the first; in all groups alike."""
    width, weight = 0, 1
    for name, radix in order.digits:
        width += (radix - 1) * weight if name == dimension else 0
        weight *= radix
    return width


def _assignment(costs: Matrix) -> int:
    # Imported late: scipy takes a while, and a run asks for the order alone.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    rows, columns = linear_sum_assignment(costs)
    return int(costs[rows, columns].sum())
