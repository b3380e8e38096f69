"""Layouts of both sides: which rank holds which part of the model. Pure Python."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from mindrl.layouts.rank_order import RankOrder, merged


@dataclass(frozen=True, kw_only=True)
class TrainLayout:
    """Parallel sizes of the training side, and the order of its ranks.

    Every rank belongs to one dense grid (tp x cp x dp x pp) and one expert grid (etp x ep x expert
    dp x pp); both share the pipeline stages.
    """

    tp: int = 1
    """Tensor-parallel size, experts excluded."""
    cp: int = 1
    """Context-parallel size; its ranks hold the same weights."""
    ulysses: int | None = None
    """Neighbouring context-parallel ranks that trade heads for tokens in attention; such groups
    pass keys and values on in a ring. None: all trade heads."""
    dp: int = 1
    """Data-parallel size."""
    pp: int = 1
    """Number of pipeline stages."""
    vpp: int = 1
    """Number of chunks on each pipeline stage (virtual pipeline)."""
    ep: int = 1
    """Expert-parallel size: ranks that share the experts of a layer as whole experts."""
    etp: int = 1
    """Tensor-parallel size of each expert."""
    layers_per_chunk: tuple[int, ...] | None = None
    """Layers of each of the pp * vpp chunks in the order of the model; None cuts evenly."""
    folds: bool = False
    """Whether the model runs through the stages and back, with two chunks on each (a V, as in
    zero-bubble schedules, arXiv 2405.15362); otherwise it loops through them `vpp` times."""
    order: RankOrder | None = None
    """Order of the dense grid; None is the engine's own: tp, cp, dp, pp, the fastest first."""
    expert_order: RankOrder | None = None
    """Order of the expert grid; None is the engine's own: etp, ep, dp, pp, the fastest first."""
    first_rank: int = 0
    """First of these ranks among all training ranks; other ranks here are relative to it."""

    def __post_init__(self) -> None:
        """Assert that a V has two chunks; users' values are checked earlier."""
        assert not self.folds or self.vpp == 2, self

    @property
    def ulysses_degree(self) -> int:
        """Number of context-parallel ranks that trade heads for tokens."""
        return self.ulysses or self.cp

    @property
    def ring(self) -> int:
        """Number of groups of them, which pass keys and values on."""
        return self.cp // self.ulysses_degree

    @property
    def world_size(self) -> int:
        """Number of ranks of the layout."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks(self) -> range:
        """Ranks of the layout, numbered among all training ranks."""
        return range(self.first_rank, self.first_rank + self.world_size)

    @property
    def ranks_per_replica(self) -> int:
        """Number of ranks that together hold one copy of all but the experts."""
        return self.tp * self.cp * self.pp

    @property
    def expert_dp(self) -> int:
        """Copies of each expert; 0 if the sizes do not fit."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    @cached_property
    def dense_order(self) -> RankOrder:
        """Order of the dense grid; users' values are checked before it is used."""
        sizes = (("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pp))
        return self._of_all_ranks(self.order or RankOrder(digits=sizes))

    @cached_property
    def experts_order(self) -> RankOrder:
        """Order of the expert grid, as `dense_order`."""
        sizes = (("etp", self.etp), ("ep", self.ep), ("dp", self.expert_dp), ("pp", self.pp))
        return self._of_all_ranks(self.expert_order or RankOrder(digits=sizes))

    def in_order(self, order: RankOrder, expert_order: RankOrder | None) -> "TrainLayout":
        """Return the same sizes with other rank orders; both must assign the same stages.

        `expert_order` is None for a model without experts; the expert grid, which engines build
        anyway, then uses the stages of `order`.
        """
        own = replace(self, order=None, expert_order=None)
        dense = None if order == own.dense_order else order
        if expert_order is None and dense is not None:
            stages = merged((name if name == "pp" else "dp", radix) for name, radix in order.digits)
            expert_order = RankOrder(digits=(*stages, ("etp", 1), ("ep", 1)))
        elif expert_order == own.experts_order:
            expert_order = None
        return replace(own, order=dense, expert_order=expert_order)

    @property
    def replicas(self) -> int:
        """Number of data-parallel ranks: each trains on its own share of a batch."""
        return self.dp

    def replica_of(self, rank: int) -> int:
        """Return the data-parallel rank of a rank."""
        return self.dense_order.coordinates[rank]["dp"]

    @property
    def leaders(self) -> tuple[int, ...]:
        """First rank of each replica's last stage, which has the results."""
        places = enumerate(self.dense_order.coordinates)
        last = [rank for rank, place in places if place.get("pp", 0) == self.last_stage]
        return _leaders(self, last)

    @property
    def last_stage(self) -> int:
        """Stage with the last chunk of the model."""
        return 0 if self.folds else self.pp - 1

    def chunks_of(self, stage: int) -> tuple[int, ...]:
        """Return the model's chunks on a stage."""
        if self.folds:
            return stage, 2 * self.pp - 1 - stage
        return tuple(range(stage, self.pp * self.vpp, self.pp))

    def stage_with(self, chunk: int) -> int:
        """Return the stage that has a chunk of the model."""
        is_back = self.folds and chunk >= self.pp
        return 2 * self.pp - 1 - chunk if is_back else chunk % self.pp

    def chunks(self, layers: int) -> list[range]:
        """Return the layers of each of the pp * vpp chunks, in the order of the model."""
        count = self.pp * self.vpp
        sizes = self.layers_per_chunk or (layers // count,) * count
        assert len(sizes) == count, f"{len(sizes)} sizes for {count} chunks"
        assert sum(sizes) == layers, f"chunks of {sizes} layers for a model of {layers}"
        return _runs(sizes)

    def _of_all_ranks(self, order: RankOrder) -> RankOrder:
        assert order.world_size == self.world_size, self
        return order


@dataclass(frozen=True, kw_only=True)
class RolloutLayout:
    """Parallel sizes of the rollout side. Ranks are numbered dp, pp, tp, with tp fastest.

    Without expert parallelism each expert is cut by tp. With it, `ep` ranks share whole experts: ep
    / tp neighbouring data-parallel ranks of one pipeline stage.
    """

    tp: int = 1
    """Tensor-parallel size."""
    pp: int = 1
    """Number of pipeline stages."""
    dp: int = 1
    """Number of replicas."""
    ep: int = 1
    """Expert-parallel size: 1, or a multiple of tp that divides tp * dp."""

    def __post_init__(self) -> None:
        """Assert the engine's requirement on `ep`; users' values are checked earlier."""
        assert self.ep == 1 or (self.ep % self.tp == 0 and self.tp * self.dp % self.ep == 0), self

    @property
    def world_size(self) -> int:
        """Number of ranks of the layout."""
        return self.tp * self.pp * self.dp

    @cached_property
    def order(self) -> RankOrder:
        """Order of the ranks, as numbered by the engine."""
        return RankOrder(digits=(("tp", self.tp), ("pp", self.pp), ("dp", self.dp)))

    @property
    def replicas(self) -> int:
        """Number of engines, each with its own prompts."""
        return self.dp

    def replica_of(self, rank: int) -> int:
        """Return the replica that a rank belongs to."""
        return rank // (self.tp * self.pp)

    def tensor_rank_of(self, rank: int) -> int:
        """Return a rank's index within its stage."""
        return rank % self.tp

    def stage_of(self, rank: int) -> int:
        """Return a rank's pipeline stage."""
        return rank // self.tp % self.pp

    def expert_rank_of(self, rank: int) -> int:
        """Return a rank's index in its expert-parallel group; 0 without expert parallelism."""
        return (self.replica_of(rank) * self.tp + self.tensor_rank_of(rank)) % self.ep

    @property
    def leaders(self) -> tuple[int, ...]:
        """First rank of each replica, in the order of the replicas."""
        return _leaders(self, range(self.world_size))

    def chunks(self, layers: int) -> list[range]:
        """Return the layers of each stage; the remainder goes to stages before the last, backwards.

        This matches the engine's `distributed.utils.get_pp_indices`.
        """
        sizes = [layers // self.pp] * self.pp
        left = layers % self.pp
        for stage in range(2, left + 2):
            sizes[-stage] += 1
        return _runs(sizes)


def _leaders(layout: TrainLayout | RolloutLayout, ranks: Iterable[int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    for rank in ranks:
        first.setdefault(layout.replica_of(rank), rank)
    return tuple(first[replica] for replica in range(layout.replicas))


def _runs(sizes: Sequence[int]) -> list[range]:
    return [range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def even_bounds(count: int, parts: int) -> list[tuple[int, int]]:
    """Return the bounds of `parts` runs of `count` items; lengths differ by at most one."""
    return list(pairwise(count * part // parts for part in range(parts + 1)))
