"""Rules between a run's predicted memory and what devices and machines have."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mindrl.config.finding import Finding, Value
from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, rollout_bytes, rollout_regions
from mindrl.memory.regions import Region
from mindrl.observability.units import MIB, mib_text
from mindrl.preflight.memory_advice import advice_on
from mindrl.preflight.memory_estimates import activation_estimates
from mindrl.preflight.memory_plan import (
    memory_plan,
    offload_switches,
    one_sequence,
    plan_without_kv_cache,
    too_small,
    with_own_kv_cache,
)
from mindrl.preflight.run_shardings import RunShardings

_PAGE = "docs/how-to/plan-memory.md"
_CAPACITY = "rl_config.device_memory_mib"
_SHARE = "generate_config.gpu_memory_utilization"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Memory that is there, in bytes; None where it is not known."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    """Of one machine."""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to compare with."""
        return (self.device_bytes, self.host_bytes) != (None, None)


@dataclass(frozen=True, kw_only=True)
class JudgedMemory:
    """What is to be said of a run's memory."""

    findings: list[Finding]
    """A step needs more than there is."""
    warnings: list[Finding]
    """By estimate it does, once its activations come on top."""


def judged_memory(models: RunShardings, capacity: Capacity) -> JudgedMemory:
    """Compare a step with the memory that there is.

    Args:
        models: Of a run without other findings, in the engine's own order.
        capacity: To compare with.
    """
    config = models.plan.config
    if not capacity.is_known or not config.rl_config.check_memory:
        return JudgedMemory(findings=[], warnings=[])
    bound = _bounding_plan(models, capacity)
    if bound is None or not _has_room(models, capacity, bound):
        found = [*_findings(models, capacity)]
    else:
        found = []
    warnings = [] if found or bound is None else [*_activations(models, bound)]
    return JudgedMemory(findings=found, warnings=warnings)


def _bounding_plan(models: RunShardings, capacity: Capacity) -> MemoryPlan | None:
    """Give every rank the largest share of every region; None where no KV cache is left then."""
    plan = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    largest = {region: np.full_like(sizes, sizes.max()) for region, sizes in plan.regions.items()}
    try:
        return with_own_kv_cache(models, replace(plan, regions=largest))
    except DeviceMemoryError:
        return None


def _has_room(models: RunShardings, capacity: Capacity, plan: MemoryPlan) -> bool:
    there, per_node = capacity.host_bytes, models.plan.topology.ranks_per_node
    return plan.fits and (there is None or plan.host_bytes_of_node(per_node) <= there)


def _findings(unordered: RunShardings, capacity: Capacity) -> Iterator[Finding]:
    """Ask the plan; ranks are ordered, and the reshard is planned, only where that decides."""
    models = unordered
    bare = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    try:
        # In any order a rank has the same part of the engine; alone, it may leave too little.
        if rollout_regions(bare) == {Region.ROLLOUT_WEIGHTS}:
            with_own_kv_cache(models, bare)
        models = unordered.ordered
        plan = memory_plan(models, capacity.device_bytes, models.most_staging)
        if not plan.fits and Region.STAGING in plan.peak_instant.resident:
            # The bound on the messages alone may be what does not fit.
            plan = memory_plan(models, capacity.device_bytes)
    except DeviceMemoryError as error:
        yield _no_room_for_kv_cache(models, capacity, str(error))
        return
    if not plan.fits:
        yield _device(models, plan)
    if capacity.host_bytes is not None:
        yield from _host(models, plan, capacity.host_bytes)


def _activations(models: RunShardings, plan: MemoryPlan) -> Iterator[Finding]:
    """Name the phase that is furthest beyond the device with the estimate of its activations."""
    estimates = activation_estimates(models.plan)
    needs = {
        instant.phase: int(plan.sum(instant.resident).max()) + estimates[instant.phase]
        for instant in plan.instants
        if instant.label == instant.phase.value and instant.phase in estimates
    }
    phase = max(needs, key=lambda each: needs[each])
    if plan.capacity_bytes is not None and needs[phase] > plan.capacity_bytes:
        there = plan.capacity_bytes // MIB
        text = (
            f"{_CAPACITY}={there}: by estimate {phase.value} needs {needs[phase] / MIB:,.0f} MiB, "
            f"{estimates[phase] / MIB:,.0f} of them for activations; smaller micro-batches or "
            "recompute_granularity=full take less"
        )
        yield Finding(text, _CAPACITY, there, page=_PAGE)


def _device(models: RunShardings, plan: MemoryPlan) -> Finding:
    """Name the one key that makes the run fit; where there is none, the memory that it needs."""
    assert plan.capacity_bytes is not None, "nothing is too small where nothing is known"
    for advice in advice_on(plan, models):
        if advice.peak_bytes <= plan.capacity_bytes:
            field, _, setting = advice.setting.partition("=")
            legal: Value = True if setting == "true" else int(setting)
            kv_cache_mib = models.plan.config.generate_config.kv_cache_mib
            value: Value = False if legal is True else kv_cache_mib
            return Finding(too_small(plan), field, value, (legal,), _PAGE)
    needed = ceil(plan.peak_bytes / MIB)
    return Finding(too_small(plan), _CAPACITY, plan.capacity_bytes // MIB, (needed,), _PAGE)


def _no_room_for_kv_cache(models: RunShardings, capacity: Capacity, text: str) -> Finding:
    """Name the share of the device that holds one sequence beside all else, where there is one."""
    assert capacity.device_bytes is not None, "a device of unknown size is never too small"
    config = models.plan.config
    plan = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    others = rollout_bytes(plan)
    least, _ = one_sequence(config, models.plan.kv_bytes_per_token)
    # What is left is cut to whole MiB, so one more may be needed.
    share = ceil((others + least + MIB) / capacity.device_bytes * 100) / 100
    legal = (share,) if share <= 1 else ()
    return Finding(text, _SHARE, config.generate_config.gpu_memory_utilization, legal, _PAGE)


def _host(models: RunShardings, plan: MemoryPlan, there: int) -> Iterator[Finding]:
    """Compare what the workers of one machine keep on the host with its memory."""
    per_node = models.plan.topology.ranks_per_node
    needed = plan.host_bytes_of_node(per_node)
    if needed <= there:
        return
    regions = [region for region in plan.movable if region in plan.regions]
    regions.sort(key=lambda region: int(plan.sum([region]).max()), reverse=True)
    switches = offload_switches(models.plan.config)
    fixes = [
        region
        for region in regions
        if (smaller := replace(plan, movable=plan.movable - {region})).fits
        and smaller.host_bytes_of_node(per_node) <= there
    ]
    switch = switches[(fixes or regions)[0]]
    field = f"{switch.section}.{switch.key}"
    text = (
        f"{field}=true: what the workers of one machine keep on the host is predicted to take "
        f"{mib_text(needed)}, and the host has {mib_text(there)}"
    )
    yield Finding(text, field, value=True, legal=(False,) if fixes else (), page=_PAGE)
