"""The memory of a step, predicted: what lies on each device at each moment of the schedule.

Needs no torch. Weights, gradients, optimizers and messages are exact; activations are not here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.regions import DEAD_AFTER_USE, NEEDS, ROLLOUT_REGIONS, Phase, Region
from mindrl.memory.schedule import Instant, Roles, copied_regions, step_phases, timeline
from mindrl.preflight.memory_regions import (
    Counts,
    RegionBytes,
    RunModels,
    host_rounding,
    movable_regions,
    read_models,
    region_bytes,
    run_roles,
)

_MIB = 1 << 20
_RESHARD = (Region.ACTOR_WEIGHTS, Region.ROLLOUT_WEIGHTS, Region.STAGING)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """A step in a running training, which begins where an update of the actor has just ended."""

    capacity_bytes: int | None
    """Of a device; None where it is not known."""
    roles: Roles
    movable: frozenset[Region]
    """May leave the device while it is not needed, besides what belongs to the rollout."""
    regions: RegionBytes
    """Every region of the run; without the KV cache where its size is not known."""
    host_rounding: Counts
    """What rounding adds at most to what each rank keeps on the host."""

    @property
    def kv_cache_bytes(self) -> int | None:
        """Bytes of the KV cache, the same on every rank; None where they hang on the capacity."""
        if Region.KV_CACHE not in self.regions:
            return None
        return int(self.regions[Region.KV_CACHE][0])

    @property
    def world_size(self) -> int:
        """Ranks of the run, one on each device."""
        return len(self.regions[Region.ROLLOUT_WEIGHTS])

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of a step, in order."""
        return step_phases(self.roles)

    @cached_property
    def resident(self) -> frozenset[Region]:
        """What lies on a device between two steps."""
        stays = self.regions.keys() - self.movable - ROLLOUT_REGIONS - {Region.STAGING}
        return frozenset(NEEDS[Phase.TRAIN]) | stays

    @cached_property
    def instants(self) -> list[Instant]:
        """The moments of a step."""
        return _timeline(self.phases, self.movable, self.resident)

    @cached_property
    def totals(self) -> Counts:
        """Bytes on the device at each moment (row) on each rank (column)."""
        lies = _presence(self.phases, self.movable, self.resident, tuple(self.regions))
        totals: Counts = lies @ np.stack([*self.regions.values()])
        return totals

    @property
    def peak_bytes(self) -> int:
        """The most that lies on any device at any moment."""
        return int(self.totals.max())

    @property
    def peak_instant(self) -> Instant:
        """The first moment with the most on a device; a phase itself rather than its last move."""
        most = self.totals.max(axis=1) == self.peak_bytes
        pairs = zip(self.instants, most.tolist(), strict=True)
        candidates = [instant for instant, is_most in pairs if is_most]
        return min(candidates, key=lambda instant: instant.label != instant.phase.value)

    @property
    def peak_rank(self) -> int:
        """The first rank with the most on its device."""
        return int(self.totals.max(axis=0).argmax())

    def need_bytes(self, rank: int) -> int:
        """Return the most that any phase needs on a rank, a reshard included: no run needs less."""
        needs = [*(NEEDS[phase] for phase in self.phases), _RESHARD]
        return max(int(self.sum(need)[rank]) for need in needs)

    @cached_property
    def host_bytes(self) -> Counts:
        """Bytes of each rank's host arena: what may leave and is not dead then, and rounding."""
        kept = (self.movable & self.regions.keys()) - DEAD_AFTER_USE
        return self.sum(kept) + self.host_rounding * bool(kept)

    def host_bytes_of_node(self, ranks_per_node: int) -> int:
        """Return what the ranks of one machine keep on its host, of the machine with most."""
        first = range(0, self.world_size, ranks_per_node)
        return int(np.add.reduceat(self.host_bytes, first).max())

    @cached_property
    def copied(self) -> tuple[list[Region], list[Region]]:
        """What a step copies: to the host, and to the device."""
        return _copied(self.phases, self.movable, self.resident)

    @property
    def copied_bytes(self) -> tuple[Counts, Counts]:
        """Bytes that a step copies on each rank: to the host, and to the device."""
        out, back = self.copied
        return self.sum(out), self.sum(back)

    @property
    def fits(self) -> bool:
        """Whether every moment fits every device, or the capacity is not known."""
        return self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes

    def of_rank(self, rank: int) -> list[tuple[Instant, dict[Region, int]]]:
        """Return what lies on one device, moment by moment, in the order of the regions."""
        return [
            (
                instant,
                {
                    region: int(self.regions[region][rank])
                    for region in Region
                    if region in instant.resident and region in self.regions
                },
            )
            for instant in self.instants
        ]

    def sum(self, regions: Iterable[Region]) -> Counts:
        """Add regions up, on each rank; one that is named twice counts twice."""
        none: Counts = np.zeros(self.world_size, dtype=np.int64)
        return sum((self.regions.get(region, none) for region in regions), start=none)


# Thousands of plans that are compared with each other have few schedules between them.
@cache
def _timeline(
    phases: tuple[Phase, ...], movable: frozenset[Region], resident: frozenset[Region]
) -> list[Instant]:
    return timeline(phases, movable, resident)


@cache
def _presence(
    phases: tuple[Phase, ...],
    movable: frozenset[Region],
    resident: frozenset[Region],
    regions: tuple[Region, ...],
) -> Counts:
    """Return 1 where a region (column) lies on the device at a moment (row), else 0."""
    instants = _timeline(phases, movable, resident)
    return np.array([[region in at.resident for region in regions] for at in instants], np.int64)


@cache
def _copied(
    phases: tuple[Phase, ...], movable: frozenset[Region], resident: frozenset[Region]
) -> tuple[list[Region], list[Region]]:
    once = copied_regions(phases, movable, resident)
    # What an update changed is copied in the step behind it.
    twice = copied_regions(phases * 2, movable, resident)
    out, back = (later[len(first) :] for first, later in zip(once, twice, strict=True))
    return out, back


def memory_plan(
    config: RunConfig, capacity_bytes: int | None, models: RunModels | None = None
) -> MemoryPlan:
    """Predict the memory of a run's steps.

    Args:
        config: Without findings.
        capacity_bytes: Of a device. None: not known; then `generate_config.kv_cache_mib` alone
            can say how large the KV cache is.
        models: Of the run, where they have been read already; None reads them.

    Raises:
        ConfigError: `generate_config.kv_cache_mib` does not hold one sequence.
        DeviceMemoryError: What the device has left for the KV cache does not hold one.
        ModelError: A model folder does not hold a known model.
    """
    models = models or read_models(config)
    plan = plan_without_kv_cache(config, capacity_bytes, models)
    return with_own_kv_cache(config, plan, models.kv_bytes_per_token)


def with_own_kv_cache(config: RunConfig, plan: MemoryPlan, per_token: int) -> MemoryPlan:
    """Return a plan with the KV cache that a run takes; as it is where nothing says its size.

    Raises:
        ConfigError: As `memory_plan`.
        DeviceMemoryError: As `memory_plan`.
    """
    nbytes = _kv_cache_bytes(config, plan, per_token)
    return plan if nbytes is None else with_kv_cache(plan, nbytes)


def plan_without_kv_cache(
    config: RunConfig, capacity_bytes: int | None, models: RunModels
) -> MemoryPlan:
    """Predict all but the KV cache."""
    return MemoryPlan(
        capacity_bytes=capacity_bytes,
        roles=run_roles(config),
        movable=movable_regions(config),
        regions=region_bytes(config, models),
        host_rounding=host_rounding(models),
    )


def with_limits(config: RunConfig, capacity_bytes: int | None, kv_cache_bytes: int) -> MemoryPlan:
    """Predict the memory of a run whose devices and KV caches are known."""
    plan = plan_without_kv_cache(config, capacity_bytes, read_models(config))
    return with_kv_cache(plan, kv_cache_bytes)


def with_kv_cache(plan: MemoryPlan, nbytes: int) -> MemoryPlan:
    """Return a plan with a KV cache of so many bytes on every rank."""
    caches = np.full(plan.world_size, nbytes, dtype=np.int64)
    return replace(plan, regions={**plan.regions, Region.KV_CACHE: caches})


def too_small(plan: MemoryPlan) -> str:
    """Say by how much a device is too small, and when."""
    assert plan.capacity_bytes is not None, "nothing is too small where nothing is known"
    return (
        f"rl_config.check_memory=true: the run is predicted to need {plan.peak_bytes / _MIB:,.1f} "
        f"MiB of device memory on rank {plan.peak_rank} at '{plan.peak_instant.label}', and the "
        f"device has {plan.capacity_bytes / _MIB:,.1f} MiB; python cli/plan.py memory shows each "
        "phase and which switch would help"
    )


def rollout_bytes(plan: MemoryPlan) -> int:
    """Return the most that lies on any device beside the KV cache during rollout."""
    (during,) = (each for each in plan.instants if each.label == Phase.ROLLOUT.value)
    return int(plan.sum(during.resident - {Region.KV_CACHE}).max())


def kv_cache_left(share: int, others: int) -> int:
    """Return the KV cache that a share of the device leaves beside all else, in whole MiB."""
    return max(0, share - others) // _MIB * _MIB


def one_sequence(config: RunConfig, per_token: int) -> tuple[int, str]:
    """Return the bytes of the smallest KV cache, that of one whole sequence, and words for it."""
    length = config.generate_config.max_model_len
    least = per_token * length
    return least, (
        f"one sequence of generate_config.max_model_len={length} tokens takes "
        f"{least / _MIB:,.1f} MiB ({per_token:,} bytes a token)"
    )


def _kv_cache_bytes(config: RunConfig, plan: MemoryPlan, per_token: int) -> int | None:
    """Return the size of the KV cache; None where nothing says it."""
    generate = config.generate_config
    least, sequence = one_sequence(config, per_token)
    if generate.kv_cache_mib is not None:
        if generate.kv_cache_mib * _MIB < least:
            raise ConfigError(f"generate_config.kv_cache_mib={generate.kv_cache_mib}: {sequence}")
        return generate.kv_cache_mib * _MIB
    if plan.capacity_bytes is None:
        return None
    share = int(plan.capacity_bytes * generate.gpu_memory_utilization)
    others = rollout_bytes(plan)
    left = kv_cache_left(share, others)
    if left < least:
        raise DeviceMemoryError(
            f"generate_config.gpu_memory_utilization={generate.gpu_memory_utilization:g} of "
            f"{plan.capacity_bytes / _MIB:,.1f} MiB is {share / _MIB:,.1f} MiB; what else lies on "
            f"the device during rollout takes {others / _MIB:,.1f} MiB, which leaves "
            f"{left / _MIB:,.0f} MiB for the KV cache; {sequence}"
        )
    return left
