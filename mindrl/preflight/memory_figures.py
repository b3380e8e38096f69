"""The memory of a step in figures: for a person before a run, and for a program as JSON."""

from dataclasses import dataclass

from mindrl.memory.plan import MemoryPlan
from mindrl.memory.regions import Phase
from mindrl.memory.schedule import MoveKind
from mindrl.preflight.memory_advice import Advice, advice_on
from mindrl.preflight.memory_estimates import activation_estimates
from mindrl.preflight.run_shardings import RunShardings


@dataclass(frozen=True, kw_only=True)
class MomentFigures:
    """What lies on the fullest device during a phase or the reshard."""

    label: str
    region_bytes: dict[str, int]
    total_bytes: int
    activations_estimate_bytes: int | None
    """Comes on top; None where nothing is estimated."""


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    """The whole answer; all sizes in bytes."""

    ranks: int
    capacity_bytes: int | None
    fits: bool | None
    """Without activations; None where the capacity is not known."""
    peak_bytes: int
    peak_rank: int
    peak_moment: str
    need_bytes: int
    """The most that one phase, or the reshard, needs on that rank."""
    moments: list[MomentFigures]
    peak_bytes_of_ranks: list[int]
    kv_cache_bytes: int | None
    """None: whatever the device has left."""
    kv_cache_tokens: int | None
    host_bytes: int
    """Of the worker that keeps most on the host."""
    copied_to_host: list[str]
    copied_to_host_bytes: int
    """In one step, by the worker that copies most."""
    copied_to_device: list[str]
    copied_to_device_bytes: int
    advice: list[Advice]


def figures_of(plan: MemoryPlan, models: RunShardings) -> MemoryFigures:
    """Sum up a plan."""
    rank = plan.peak_rank
    estimates = activation_estimates(models.plan)
    out, back = plan.copied
    out_bytes, back_bytes = plan.copied_bytes
    kv_cache = plan.kv_cache_bytes
    return MemoryFigures(
        ranks=plan.world_size,
        capacity_bytes=plan.capacity_bytes,
        fits=None if plan.capacity_bytes is None else plan.fits,
        peak_bytes=plan.peak_bytes,
        peak_rank=rank,
        peak_moment=plan.peak_instant.label,
        need_bytes=plan.need_bytes(rank),
        moments=_moments(plan, rank, estimates),
        peak_bytes_of_ranks=plan.totals.max(axis=0).tolist(),
        kv_cache_bytes=kv_cache,
        kv_cache_tokens=None if kv_cache is None else kv_cache // models.plan.kv_bytes_per_token,
        host_bytes=int(plan.host_bytes.max()),
        copied_to_host=[region.value for region in out],
        copied_to_host_bytes=int(out_bytes.max()),
        copied_to_device=[region.value for region in back],
        copied_to_device_bytes=int(back_bytes.max()),
        advice=advice_on(plan, models),
    )


def _moments(plan: MemoryPlan, rank: int, estimates: dict[Phase, int]) -> list[MomentFigures]:
    """Return the moments between which memory only grows, or only shrinks."""
    return [
        MomentFigures(
            label=instant.label,
            region_bytes={region.value: size for region, size in regions.items()},
            total_bytes=sum(regions.values()),
            activations_estimate_bytes=(
                estimates.get(instant.phase) if instant.label == instant.phase.value else None
            ),
        )
        for instant, regions in plan.of_rank(rank)
        if instant.label in (instant.phase.value, MoveKind.RESHARD.value)
    ]
