"""Figures of a planned reshard, for people before a run and for programs as JSON."""

from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod

import numpy as np

from mindrl.layouts.rank_order import RankOrder
from mindrl.models.decoder import DType, always_float32, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import volume
from mindrl.models.sharding import Sharding
from mindrl.resharding.plan import LARGE_BYTES, ReshardPlan, Topology
from mindrl.resharding.rank_map import RankMap
from mindrl.resharding.slices import Integers


@dataclass(frozen=True, kw_only=True)
class PerRank:
    """Bytes per rank."""

    total: int
    max: int
    per_rank: list[int]


@dataclass(frozen=True, kw_only=True)
class BusiestRank:
    """The rank that sends or receives most."""

    rank: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, kw_only=True)
class BusiestPair:
    """The sender and receiver with the most bytes between them."""

    source: int
    target: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """Figures of one plan."""

    received_bytes: PerRank
    lower_bound_bytes: PerRank
    """Bytes needed and not held: no plan receives less."""
    sent_bytes: PerRank
    copied_bytes: PerRank
    """Copied within a rank."""
    peak_staging_bytes: PerRank
    within_nodes_bytes: int
    across_nodes_bytes: int
    busiest_rank: BusiestRank | None
    busiest_pair: BusiestPair | None
    """`busiest_rank` and `busiest_pair` are None if nothing is sent."""
    rounds: int
    messages: int
    """One message for each large transfer, and for the small ones of a pair in a round."""
    seconds: float
    """Time of the busiest rank at the given bandwidth, without other delays."""


@dataclass(frozen=True, kw_only=True)
class RankMapFigures:
    """Bytes that all ranks together receive, for several orders of the training ranks."""

    default_bytes: int
    """Bytes in the engine's own order."""
    best_in_nodes_bytes: int
    """Minimum over all permutations inside the nodes."""
    best_bytes: int
    """Minimum over all permutations."""
    applied_bytes: int
    """Bytes in `order`, the best that the engine's groups support."""
    order: list[tuple[str, int]]
    """Digits of a rank in the dense grid, the fastest first: dimension and radix."""
    expert_order: list[tuple[str, int]]
    """Digits of a rank in the expert grid; empty for a dense model."""


@dataclass(frozen=True, kw_only=True)
class ReshardFigures:
    """All figures of a reshard."""

    model: str
    training: str
    rollout: str
    ranks: int
    ranks_per_node: int
    disjoint: bool
    dtypes: tuple[DType, DType]
    """Dtypes of the training and of the rollout weights; the smaller one is sent."""
    bucket_bytes: int
    gbit_per_second_per_rank: float
    full_gather_bytes: int
    """Bytes that all ranks together receive if each gathers every tensor whole."""
    rank_map: RankMapFigures | None
    """None if no rank order was searched."""
    default: PlanFigures
    """Figures in the engine's own order of the ranks."""
    chosen: PlanFigures
    """Figures in the order of `rank_map`, if there is one."""


def figures_of(plan: ReshardPlan, topology: Topology, *, gbit_per_second: float) -> PlanFigures:
    """Return the figures of a plan of all ranks, each with the bandwidth in each direction."""
    sent, received, pairs = plan.sent, plan.received, plan.pair_bytes
    within = int(pairs[topology.shared_nodes(plan.world_size)].sum())
    longest = np.maximum(sent, received)
    rank, (source, target) = int(longest.argmax()), divmod(int(pairs.argmax()), len(pairs))
    busiest = BusiestRank(rank=rank, sent_bytes=int(sent[rank]), received_bytes=int(received[rank]))
    pair = BusiestPair(source=source, target=target, bytes=int(pairs[source, target]))
    return PlanFigures(
        received_bytes=_per_rank(received),
        lower_bound_bytes=_per_rank(plan.lower_bound),
        sent_bytes=_per_rank(sent),
        copied_bytes=_per_rank(plan.copied),
        peak_staging_bytes=_per_rank(plan.peak_staging),
        within_nodes_bytes=within,
        across_nodes_bytes=int(pairs.sum()) - within,
        busiest_rank=busiest if longest[rank] else None,
        busiest_pair=pair if pair.bytes else None,
        rounds=plan.rounds,
        messages=_messages(plan),
        seconds=int(longest.max()) * 8 / (gbit_per_second * 1e9),
    )


def _messages(plan: ReshardPlan) -> int:
    """Count the messages of all ranks, as `messages_of` lays them out."""
    routes, remote, slices = plan.routes, plan.remote, plan.slices
    members, bundle = slices.bundles.members, routes.bundle[remote]
    rounds = routes.round[remote].astype(np.int64)
    pairs = (rounds * plan.world_size + routes.source[remote]) * plan.world_size
    pairs += routes.target[remote]
    ordered = np.fromiter(chain.from_iterable(members), dtype=np.int64)
    bundle_of = np.repeat(np.arange(len(members)), [*map(len, members)])
    is_large = slices.wire_bytes[ordered] >= LARGE_BYTES
    count = np.bincount(bundle_of[is_large], minlength=len(members))[bundle].sum()
    # Small transfers of a pair share a message if their dtype is the same.
    is_wide = np.zeros(len(ordered), dtype=np.bool_)
    if plan.dtype != "float32":
        is_wide[:] = [always_float32(slices.pieces[at].wanted.tensor) for at in ordered.tolist()]
    for packed in (~is_large & is_wide, ~is_large & ~is_wide):
        has_packed = np.bincount(bundle_of[packed], minlength=len(members)) > 0
        count += len(np.unique(pairs[has_packed[bundle]]))
    return int(count)


def _per_rank(counts: Integers) -> PerRank:
    return PerRank(total=int(counts.sum()), max=int(counts.max()), per_rank=counts.tolist())


def rank_map_figures(found: RankMap, topology: Topology, *, experts: bool) -> RankMapFigures:
    """Compare the chosen order with the engine's own and with all permutations."""
    costs, nodes = found.costs, topology.nodes(len(found.costs))

    def digits(order: RankOrder) -> list[tuple[str, int]]:
        return [(dimension, radix) for dimension, radix in order.digits if radix > 1]

    return RankMapFigures(
        default_bytes=int(costs.diagonal().sum()),
        best_in_nodes_bytes=sum(
            _assigned(costs[np.ix_(nodes == node, nodes == node)]) for node in np.unique(nodes)
        ),
        # A permutation keeps a rank's dense weights and experts of the default order together; an
        # order may pair them differently.
        best_bytes=min(_assigned(costs), found.applied_bytes),
        applied_bytes=found.applied_bytes,
        order=digits(found.layout.dense_order),
        expert_order=digits(found.layout.experts_order) if experts else [],
    )


def _assigned(costs: Integers) -> int:
    """Return the minimum sum of one cost from each row and each column."""
    # Imported late: scipy is slow to import, and a run needs only the order.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    return int(costs[linear_sum_assignment(costs)].sum())


def full_gather_bytes(model: ModelDescription, source: Sharding, target: Sharding) -> int:
    """Return the bytes that all ranks receive if each gathers every tensor whole.

    A rank receives the part of the whole model that it does not hold; a rank on neither side
    receives no bytes.
    """
    shapes = logical_shapes(model)
    sizes = {name: min(source.element_bytes(name), target.element_bytes(name)) for name in shapes}
    whole = sum(sizes[name] * prod(shape) for name, shape in shapes.items())

    @cache
    def held(shards: tuple[str, ...]) -> int:
        boxes = {
            (placement.tensor, placement.source)
            for shard in shards
            for entry in source.shards[shard].values()
            for placement in entry.placements
        }
        return sum(sizes[tensor] * volume(box) for tensor, box in boxes)

    ranks = zip(source.held_by, target.held_by, strict=True)
    return sum(whole - held(ours) for ours, theirs in ranks if ours or theirs)
