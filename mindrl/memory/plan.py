"""Memory plan of a step: the bytes of each region on each device at each moment.

Pure. Weights, gradients, optimizers and messages are exact; activations are not included.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindrl.config.layout_keys import Role
from mindrl.memory.pictures import PictureBytes
from mindrl.memory.schedule import (
    DEAD_AFTER_USE,
    NEEDS,
    ROLE_REGIONS,
    ROLLOUT_REGIONS,
    Instant,
    Phase,
    Region,
    Side,
    copied_regions,
    rollout_timeline,
    step_phases,
    timeline,
)
from mindrl.observability.timeline import MemorySnapshot
from mindrl.observability.units import MIB

RankBytes = NDArray[np.int64]
"""Bytes on each rank."""
RegionBytes = Mapping[Region, RankBytes]
"""Bytes of each region on each rank."""

_RESHARD = (Region.ACTOR_WEIGHTS, Region.ROLLOUT_WEIGHTS, Region.STAGING)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Memory of one step in a running training, starting right after an update of the actor.

    On devices without the actor it starts after the last phase that they take part in.
    """

    capacity_bytes: int | None
    """Memory of a device; None if unknown."""
    roles: tuple[Role, ...]
    reads_actor: bool = True
    """Whether the actor's log-probs are computed in a separate pass."""
    movable: frozenset[Region]
    """Regions that may leave the device while unused, except those of the rollout."""
    regions: RegionBytes
    """Every region of the run; without the KV cache if its size is unknown."""
    unchanging: RegionBytes = field(default_factory=dict)
    """Bytes of a region that no update changes: copied to the host once, before the first step."""
    host_rounding: RankBytes
    """Maximum bytes that rounding adds to each rank's host memory."""
    waiting: RankBytes | None = None
    """Bytes of each rank on the host of models that wait for their turn in a region. None without
    such models."""
    routes: RankBytes | None = None
    """Bytes of each rank on the host of a mixture's routes, at most. None without replay."""
    pictures: PictureBytes = field(default_factory=PictureBytes)
    """Bytes of pictures on each device during a rollout, and on the host outside the arena."""
    steps: Mapping[Phase, int] = field(default_factory=dict)
    """Upper bound of what the optimizer makes and frees in a step, in addition to the regions, on
    any device, by phase; empty if activations need more."""
    graphs: int = 0
    """Estimated bytes of the engine's graphs on each device. They stay there at all times, in
    addition to the regions."""
    side: Side = "both"
    """Side of the run on these devices; "rollout" is one rollout replica on its own devices."""
    places: tuple[tuple[Role, ...], ...] = ()
    """Roles of each rank; empty if each has all of them."""
    rollout_layers: tuple[int, ...] = ()
    """Layers on each rank of a rollout replica; empty if all have the same number."""

    @property
    def kv_cache_bytes(self) -> int | None:
        """Bytes of the KV cache on the ranks with most layers; None if the capacity decides."""
        if Region.KV_CACHE not in self.regions:
            return None
        return int(self.regions[Region.KV_CACHE].max())

    @property
    def world_size(self) -> int:
        """Number of ranks of the run, one per device."""
        return len(next(iter(self.regions.values())))

    @cached_property
    def course(self) -> "Course":
        """Course of a step; those of ranks with different roles are concatenated.

        A region is copied if any of these ranks copies it.
        """
        first, *others = (course for _, course in self.courses.values())
        if not others:
            return first
        courses = (first, *others)
        return Course(
            [at for each in courses for at in each.instants],
            np.concatenate([each.presence for each in courses]),
            [*dict.fromkeys(region for each in courses for region in each.copied_out)],
            [*dict.fromkeys(region for each in courses for region in each.copied_back)],
        )

    @cached_property
    def courses(self) -> "dict[tuple[Role, ...], tuple[list[int], Course]]":
        """Ranks and course of each combination of roles."""
        kinds: dict[tuple[Role, ...], list[int]] = {}
        for rank, roles in enumerate(self.places or (self.roles,) * self.world_size):
            kinds.setdefault(roles, []).append(rank)
        movable, side = self.movable, self.side
        return {
            roles: (ranks, _course(self._phases_of(roles), movable, self._of(roles), side))
            for roles, ranks in kinds.items()
        }

    def _of(self, roles: Collection[Role]) -> tuple[tuple[Region, bool], ...]:
        """Return each region, and whether ranks with these roles allocate it.

        The actor's weights count on every rank: all take part in their transfer.
        """
        elsewhere = {
            region
            for role, regions in ROLE_REGIONS.items()
            for region in regions
            if role not in roles and region is not Region.ACTOR_WEIGHTS
        }
        return tuple((region, region not in elsewhere) for region in self.regions)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of a step, in order."""
        return self._phases_of(self.roles)

    def _phases_of(self, roles: Collection[Role]) -> tuple[Phase, ...]:
        return step_phases(roles, reads_actor=self.reads_actor, side=self.side)

    @cached_property
    def totals(self) -> RankBytes:
        """Bytes on the device at each moment (row) on each rank (column).

        0 on a rank without that moment.
        """
        sizes, blocks = np.stack([*self.regions.values()]), []
        for ranks, course in self.courses.values():
            block = np.zeros((len(course.instants), self.world_size), dtype=np.int64)
            block[:, ranks] = course.presence @ sizes[:, ranks]
            blocks.append(block)
        totals: RankBytes = np.concatenate(blocks)
        return totals

    @cached_property
    def moments(self) -> list[tuple[Instant, int]]:
        """Moments of a step, each with the maximum bytes on any device."""
        return list(zip(self.course.instants, self.totals.max(axis=1).tolist(), strict=True))

    @property
    def peak_bytes(self) -> int:
        """Maximum bytes on any device at any moment."""
        return int(self.totals.max())

    @property
    def needed_bytes(self) -> int:
        """Peak with the graphs."""
        return self.peak_bytes + self.graphs

    def working_bytes(self, phase: Phase, activations: int) -> int:
        """Return what a phase needs besides its regions: activations, or its optimizer's step."""
        return max(activations, self.steps.get(phase, 0))

    @property
    def peak_instant(self) -> Instant:
        """First moment with the maximum; a phase itself rather than the last move into it."""
        candidates = [instant for instant, most in self.moments if most == self.peak_bytes]
        return min(candidates, key=lambda instant: instant.move is not None)

    @property
    def peak_rank(self) -> int:
        """First rank with the maximum on its device."""
        return int(self.totals.max(axis=0).argmax())

    def need_bytes(self, rank: int) -> int:
        """Return the bytes of the largest phase or reshard on a rank: no run needs less."""
        needs = [*(NEEDS[phase] for phase in self.phases), _RESHARD]
        if self.side == "rollout":
            needs = [(*NEEDS[Phase.ROLLOUT], Region.STAGING)]
        return max(int(self.sum(need)[rank]) for need in needs)

    @cached_property
    def host_bytes(self) -> RankBytes:
        """Bytes of each rank's host arena: movable regions not in `DEAD_AFTER_USE`, rounded up."""
        kept = (self.movable & self.regions.keys()) - DEAD_AFTER_USE
        waiting = self.sum(()) if self.waiting is None else self.waiting
        return self.sum(kept) + waiting + self.host_rounding * bool(kept)

    def host_bytes_of_node(self, ranks_per_node: int) -> int:
        """Return the host bytes of all ranks of a machine, the maximum over machines.

        With pictures and the routes of a mixture, which are not in the arena.
        """
        first = range(0, self.world_size, ranks_per_node)
        whole = self.host_bytes + self.pictures.host
        if self.routes is not None:
            whole = whole + self.routes
        return int(np.add.reduceat(whole, first).max())

    @property
    def copied_bytes(self) -> tuple[RankBytes, RankBytes]:
        """Bytes that a step copies on each rank: to the host, and to the device."""
        out, back = (np.zeros(self.world_size, dtype=np.int64) for _ in range(2))
        for ranks, course in self.courses.values():
            stays = sum(
                self.unchanging[each] for each in course.copied_out if each in self.unchanging
            )
            out[ranks] = (self.sum(course.copied_out) - stays)[ranks]
            back[ranks] = self.sum(course.copied_back)[ranks]
        return out, back

    @property
    def fits(self) -> bool:
        """Whether every moment fits every device; true if the capacity is unknown."""
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    def of_rank(self, rank: int) -> list[MemorySnapshot]:
        """Return the regions on one device at each moment, in the order of `Region`."""
        roles = self.places[rank] if self.places else self.roles
        there = {region for region, is_there in self._of(roles) if is_there}
        return [
            MemorySnapshot(
                label=instant.label,
                phase=instant.phase.value,
                region_bytes={
                    region.value: int(self.regions[region][rank])
                    for region in Region
                    if region in instant.resident and region in there
                },
            )
            for instant in self.courses[roles][1].instants
        ]

    def sum(self, regions: Iterable[Region]) -> RankBytes:
        """Return the sum of regions on each rank; a region listed twice counts twice."""
        none: RankBytes = np.zeros(self.world_size, dtype=np.int64)
        return sum((self.regions.get(region, none) for region in regions), start=none)


def rollout_side(
    capacity_bytes: int | None,
    weights: RankBytes,
    messages: RankBytes,
    layers: tuple[int, ...] = (),
) -> MemoryPlan:
    """Return the plan of devices with the rollout only, without a KV cache.

    `layers` is `rollout_layers`.
    """
    return MemoryPlan(
        capacity_bytes=capacity_bytes,
        roles=(),
        movable=frozenset(),
        regions={Region.ROLLOUT_WEIGHTS: weights, Region.STAGING: messages},
        host_rounding=np.zeros(len(weights), dtype=np.int64),
        side="rollout",
        rollout_layers=layers,
    )


def with_kv_cache(plan: MemoryPlan, nbytes: int) -> MemoryPlan:
    """Return the plan with a KV cache of `nbytes` on every rank with most layers.

    Others have less: all stages of a replica need the same number of blocks.
    """
    caches = np.full(plan.world_size, nbytes, dtype=np.int64)
    if plan.rollout_layers:
        layers = np.resize(np.array(plan.rollout_layers, dtype=np.int64), plan.world_size)
        caches = nbytes // layers.max() * layers
    return replace(plan, regions={**plan.regions, Region.KV_CACHE: caches})


def rollout_regions(plan: MemoryPlan) -> frozenset[Region]:
    """Return the regions on a device during rollout except the KV cache; also resident messages."""
    during = [each.resident for each in plan.course.instants if Region.KV_CACHE in each.resident]
    return frozenset().union(*during) & plan.regions.keys() - {Region.KV_CACHE}


def rollout_bytes(plan: MemoryPlan) -> int:
    """Return the maximum bytes on any device without the KV cache during rollout.

    Features of pictures and graphs are included.
    """
    return int(plan.sum(rollout_regions(plan)).max()) + plan.pictures.engine + plan.graphs


def kv_cache_left(share: int, others: int) -> int:
    """Return the KV cache that fits into a share of the device after all else, in whole MiB."""
    return max(0, share - others) // MIB * MIB


class Course(NamedTuple):
    """Order in which regions enter and leave the devices in a step, without sizes."""

    instants: list[Instant]
    """Moments of the step."""
    presence: RankBytes
    """1 if a region (column) is on the device at a moment (row), else 0."""
    copied_out: list[Region]
    """Regions copied to the host."""
    copied_back: list[Region]


# Cached: thousands of compared plans share a few courses.
@cache
def _course(
    phases: tuple[Phase, ...],
    movable: frozenset[Region],
    regions: tuple[tuple[Region, bool], ...],
    side: Side,
) -> Course:
    there = {region for region, is_there in regions if is_there}
    stays = there - movable - ROLLOUT_REGIONS - {Region.STAGING}
    resident = stays | set(NEEDS[phases[-1]])
    instants = rollout_timeline() if side == "rollout" else timeline(phases, movable, resident)
    lies = [[region in at.resident and region in there for region, _ in regions] for at in instants]
    if side == "rollout":
        return Course(instants, np.array(lies, np.int64), [], [])
    # Regions that an update changed are copied in the next step.
    once, twice = copied_regions(instants), copied_regions(timeline(phases * 2, movable, resident))
    out, back = (later[len(first) :] for first, later in zip(once, twice, strict=True))
    return Course(instants, np.array(lies, np.int64), out, back)
