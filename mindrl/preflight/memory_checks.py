"""What a run's predicted memory breaks of what devices and machines have, and what would help."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mindrl.config.finding import Finding, Value
from mindrl.config.run import RunConfig
from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, rollout_bytes, rollout_regions, with_kv_cache
from mindrl.memory.schedule import Region
from mindrl.observability.units import MIB, mib_text
from mindrl.preflight.memory_plan import (
    activation_estimates,
    memory_plan,
    offload_keys,
    one_sequence,
    plan_without_kv_cache,
    region_bytes,
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

    def holds(self, plan: MemoryPlan, ranks_per_node: int) -> bool:
        """Tell whether devices and machines have room for a plan of these devices."""
        there = self.host_bytes
        return plan.fits and (there is None or plan.host_bytes_of_node(ranks_per_node) <= there)


def judged_memory(models: RunShardings, capacity: Capacity) -> tuple[list[Finding], list[Finding]]:
    """Compare a step with the memory that there is; `models` are of a run without other findings.

    Returns:
        Findings where a step needs more, and warnings where it does by estimate, once its
        activations come on top.
    """
    config, per_node = models.plan.config, models.plan.topology.ranks_per_node
    if capacity == Capacity() or not config.rl_config.check_memory:
        return [], []
    bound = _bounding_plan(models, capacity)
    surely_fits = bound is not None and capacity.holds(bound, per_node)
    found = [] if surely_fits else [*_findings(models, capacity)]
    return found, [] if found or bound is None else [*_activations(models, bound)]


def _bounding_plan(models: RunShardings, capacity: Capacity) -> MemoryPlan | None:
    """Give every rank the largest share of every region; None where no KV cache is left then."""
    plan = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    largest = {region: np.full_like(sizes, sizes.max()) for region, sizes in plan.regions.items()}
    try:
        return with_own_kv_cache(models, replace(plan, regions=largest))
    except DeviceMemoryError:
        return None


def _findings(models: RunShardings, capacity: Capacity) -> Iterator[Finding]:
    """Ask the plan; ranks are ordered, and the reshard is planned, only where that decides."""
    bare = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    try:
        # In any order a rank has the same part of the engine; alone, it may leave too little.
        if rollout_regions(bare) == {Region.ROLLOUT_WEIGHTS}:
            with_own_kv_cache(models, bare)
        models = models.ordered
        plan = memory_plan(models, capacity.device_bytes, models.most_staging)
        if not plan.fits and Region.STAGING in plan.peak_instant.resident:
            # The bound on the messages alone may be what does not fit.
            plan = memory_plan(models, capacity.device_bytes)
    except DeviceMemoryError as error:
        yield _no_room_for_kv_cache(models, capacity, str(error))
        return
    if not plan.fits:
        yield _device(models, plan)
    yield from _host(models, plan, capacity)


def _activations(models: RunShardings, plan: MemoryPlan) -> Iterator[Finding]:
    """Name the phase that is furthest beyond the device with the estimate of its activations."""
    estimates = activation_estimates(models.plan)
    needs = {
        at.phase: most + estimates[at.phase]
        for at, most in plan.moments
        if at.move is None and at.phase in estimates
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


def _host(models: RunShardings, plan: MemoryPlan, capacity: Capacity) -> Iterator[Finding]:
    """Compare what the workers of one machine keep on the host with its memory."""
    there, per_node = capacity.host_bytes, models.plan.topology.ranks_per_node
    needed = plan.host_bytes_of_node(per_node)
    if there is None or needed <= there:
        return
    regions = [region for region in plan.movable if region in plan.regions]
    regions.sort(key=lambda region: int(plan.sum([region]).max()), reverse=True)
    without = ((region, replace(plan, movable=plan.movable - {region})) for region in regions)
    fixes = [region for region, smaller in without if capacity.holds(smaller, per_node)]
    field = offload_keys(models.plan.config)[(fixes or regions)[0]]
    text = (
        f"{field}=true: what the workers of one machine keep on the host is predicted to take "
        f"{mib_text(needed)}, and the host has {mib_text(there)}"
    )
    yield Finding(text, field, value=True, legal=(False,) if fixes else (), page=_PAGE)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A key to change, all else as it is."""

    setting: str
    """As it is written on the command line."""
    peak_bytes: int
    """With it."""
    saved_bytes: int


def advice_on(plan: MemoryPlan, models: RunShardings) -> list[Advice]:
    """Return every key that lowers the peak, the best first."""
    config = models.plan.config
    variants = {
        f"{key}=true": replace(plan, movable=plan.movable | {region})
        for region, key in offload_keys(config).items()
        if region not in plan.movable
    }
    if not config.megatron_training.use_distributed_optimizer:
        staging = plan.regions[Region.STAGING]
        shared = region_bytes(models, staging, distributed_optimizer=True)
        variants["megatron_training.use_distributed_optimizer=true"] = replace(
            plan, regions={**plan.regions, **shared}
        )
    smaller = _smaller_kv_cache(config, plan, models.plan.kv_bytes_per_token)
    if smaller is not None:
        variants[f"generate_config.kv_cache_mib={smaller // MIB}"] = with_kv_cache(plan, smaller)
    found = [
        Advice(
            setting=setting,
            peak_bytes=variant.peak_bytes,
            saved_bytes=plan.peak_bytes - variant.peak_bytes,
        )
        for setting, variant in variants.items()
        if variant.peak_bytes < plan.peak_bytes
    ]
    return sorted(found, key=lambda advice: advice.peak_bytes)


def _smaller_kv_cache(config: RunConfig, plan: MemoryPlan, per_token: int) -> int | None:
    """Return the largest KV cache that fits the device, or is not in the peak where it does.

    At least one sequence of it.
    """
    now = plan.kv_cache_bytes
    if now is None or Region.KV_CACHE not in plan.peak_instant.resident:
        return None
    without = (most for at, most in plan.moments if Region.KV_CACHE not in at.resident)
    others = max(without, default=0)
    wanted = others if plan.fits else max(others, plan.capacity_bytes or 0)
    least = -(-per_token * config.generate_config.max_model_len // MIB)
    smaller = max((now - plan.peak_bytes + wanted) // MIB, least) * MIB
    return smaller if smaller < now else None
