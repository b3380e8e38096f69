"""Predicted memory of a run: the plan, its findings, and advice.

Needs no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mindrl.config.finding import Finding, Value, broken, spelled
from mindrl.config.layout_keys import SIZE_KEYS, Role
from mindrl.config.role_places import places
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.plan import (
    MemoryPlan,
    RankBytes,
    kv_cache_left,
    rollout_bytes,
    rollout_regions,
    rollout_side,
    with_kv_cache,
)
from mindrl.memory.schedule import PHASE_ROLES, ROLE_REGIONS, UPDATES, Region
from mindrl.observability.units import MIB, mib_text
from mindrl.platform.host_memory import rounded
from mindrl.preflight.activation_estimates import activation_estimates
from mindrl.preflight.graph_memory import graph_bytes
from mindrl.preflight.host_parts import keeping_less, offload_keys
from mindrl.preflight.picture_memory import picture_bytes
from mindrl.preflight.route_memory import kept_route_bytes
from mindrl.preflight.run_shardings import RunShardings
from mindrl.rollout.planning import CacheSizes
from mindrl.training.trained_bytes import TrainedBytes

_PAGE = "docs/how-to/plan-a-run.md#plan-the-memory"
_CAPACITY = "rl_config.device_memory_mib"
_SHARE = "generate_config.gpu_memory_utilization"
_STORAGES_PER_TENSOR = 4
"""Maximum: weight, main weight, two moments; each has its own place on the host."""


def memory_plan(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict the memory of a run's steps.

    If the capacity of a device is unknown, only `generate_config.kv_cache_mib` determines the size
    of the KV cache.

    Raises:
        ConfigError: `generate_config.kv_cache_mib` is too small for one sequence.
        DeviceMemoryError: The memory left for the KV cache is too small for one sequence.
    """
    return with_own_kv_cache(models, plan_without_kv_cache(models, capacity_bytes, staging))


def with_own_kv_cache(models: RunShardings, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with the run's KV cache; unchanged if its size is unknown.

    Raises as `memory_plan`.
    """
    config, sizes = models.plan.config, models.plan.cache_sizes
    for finding in kv_cache_findings(config, sizes):
        raise ConfigError(str(finding))
    if plan.side == "training":
        return plan
    generate = config.generate_config
    if generate.kv_cache_mib is not None:
        return with_kv_cache(plan, generate.kv_cache_mib * MIB)
    if plan.capacity_bytes is None:
        return plan
    share = int(plan.capacity_bytes * generate.gpu_memory_utilization)
    others = rollout_bytes(plan)
    left = kv_cache_left(share, others)
    least, sequence = one_sequence(config, sizes)
    if left < least:
        raise DeviceMemoryError(
            f"generate_config.gpu_memory_utilization={generate.gpu_memory_utilization:g} "
            f"of {mib_text(plan.capacity_bytes)} is {mib_text(share)}; everything else on "
            f"the device during rollout takes {mib_text(others)}, which leaves "
            f"{left / MIB:,.0f} MiB for the KV cache; {sequence}"
        )
    return with_kv_cache(plan, left)


def kv_cache_findings(config: RunConfig, sizes: CacheSizes) -> Iterator[Finding]:
    """Yield a finding if a given KV cache is too small for one sequence."""
    mib, (least, sequence) = config.generate_config.kv_cache_mib, one_sequence(config, sizes)
    if mib is not None and mib * MIB < least:
        yield broken("generate_config.kv_cache_mib", mib, f": {sequence}", -(-least // MIB))


def one_sequence(config: RunConfig, sizes: CacheSizes) -> tuple[int, str]:
    """Return the bytes of the smallest KV cache, for one sequence, and a description."""
    length = config.generate_config.max_model_len
    return (least := sizes.smallest(length)), (
        f"one sequence of generate_config.max_model_len={length} tokens, and the engine's spare "
        f"block, take {mib_text(least)} ({sizes.described()})"
    )


def plan_without_kv_cache(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict all but the KV cache; without `staging`, plan the reshard to compute it.

    With separate rollout, of the training side only.
    """
    config, layers = models.plan.config, models.plan.rollout_layers
    none: RankBytes = np.zeros(config.world_size, dtype=np.int64)
    if not config.learns:
        side = rollout_side(capacity_bytes, models.rollout_bytes, none, layers)
        return replace(side, pictures=picture_bytes(models.plan), graphs=graph_bytes(models.plan))
    shares = config.megatron_training.use_distributed_optimizer
    known = staging if config.rolls_out else none
    messages = models.staging if known is None else known
    trained = trained_bytes(models, distributed_optimizer=shares)
    regions = region_bytes(models, messages, trained)
    trains_alone = config.is_apart or not config.rolls_out
    if trains_alone:
        del regions[Region.ROLLOUT_WEIGHTS]
        regions = {region: each[: config.world_size] for region, each in regions.items()}
    return MemoryPlan(
        capacity_bytes=capacity_bytes,
        roles=config.roles,
        reads_actor=config.reads_actor,
        movable=frozenset(
            name for name, key in offload_keys(config).items() if config.value_of(key)
        ),
        unchanging=models.unchanging,
        regions=regions,
        # Maximum of the rounding.
        host_rounding=models.storages * _STORAGES_PER_TENSOR * rounded(1),
        waiting=models.waiting,
        routes=kept_route_bytes(models.plan),
        pictures=picture_bytes(models.plan),
        steps={
            phase: max(each.step for each in trained[role])
            for phase, role in PHASE_ROLES.items()
            if phase in UPDATES and role in trained
        },
        graphs=0 if trains_alone else graph_bytes(models.plan),
        places=places(config),
        side="training" if trains_alone else "both",
        rollout_layers=() if trains_alone else models.plan.rollout_layers,
    )


def too_small(plan: MemoryPlan) -> str:
    """Describe by how much a device is too small, and when."""
    assert plan.capacity_bytes is not None, "an unknown size is never too small"
    graphs = f", {mib_text(plan.graphs)} of them for graphs" if plan.graphs else ""
    return (
        f"rl_config.check_memory=true: the run needs about {mib_text(plan.needed_bytes)} of "
        f"device memory on rank {plan.peak_rank} at '{plan.peak_instant.label}'{graphs}, and the "
        f"device has {mib_text(plan.capacity_bytes)}; `mindrl plan memory` shows each "
        "phase and the switches that help"
    )


def trained_bytes(
    models: RunShardings, *, distributed_optimizer: bool
) -> dict[Role, tuple[TrainedBytes, ...]]:
    """Return the bytes of each rank's trained models.

    With `distributed_optimizer` replicas shard the optimizer states.
    """
    trained = (role for role in models.training if len(ROLE_REGIONS[role]) > 1)
    return {
        role: models.trained_bytes(role, distributed_optimizer=distributed_optimizer)
        for role in trained
    }


def region_bytes(
    models: RunShardings, staging: RankBytes, trained: Mapping[Role, Sequence[TrainedBytes]]
) -> dict[Region, RankBytes]:
    """Return the bytes of each region on each rank, except the KV cache.

    `staging` is for messages in flight; `trained` is the result of `trained_bytes`.
    """
    found: dict[Region, RankBytes] = {
        Region.ROLLOUT_WEIGHTS: models.rollout_bytes,
        Region.STAGING: staging,
    }
    for role, side in models.training.items():
        regions = ROLE_REGIONS[role]
        if role not in trained:
            found[regions[0]] = models.of_all_ranks(role, np.array(side.held_bytes()))
            continue
        ranks = trained[role]
        parts = np.array([(each.weights, each.gradients, each.optimizer) for each in ranks])
        found |= dict(zip(regions, models.of_all_ranks(role, parts).T, strict=True))
    return found


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Available memory in bytes; None if unknown."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    """Memory of one machine."""

    def holds(self, plan: MemoryPlan, ranks_per_node: int) -> bool:
        """Return whether devices and machines have room for a plan of these devices."""
        there = self.host_bytes
        return plan.fits and (there is None or plan.host_bytes_of_node(ranks_per_node) <= there)


def judged_memory(models: RunShardings, capacity: Capacity) -> tuple[list[Finding], list[Finding]]:
    """Compare a step with the available memory; `models` are of a run without other findings.

    Returns:
        Findings if a step needs more, and warnings if it needs more including estimated
            activations.
    """
    config, per_node = models.plan.config, models.plan.topology.ranks_per_node
    if capacity == Capacity() or not config.rl_config.check_memory:
        return [], []
    bound = _bounding_plan(models, capacity)
    surely_fits = bound is not None and capacity.holds(bound, per_node)
    found = [] if surely_fits else [*_findings(models, capacity)]
    return found, [] if found or bound is None else [*_activations(models, bound)]


def _bounding_plan(models: RunShardings, capacity: Capacity) -> MemoryPlan | None:
    """Plan with each region's maximum on all ranks; None if no KV cache is left then."""
    plan = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    largest = {region: np.full_like(sizes, sizes.max()) for region, sizes in plan.regions.items()}
    try:
        return with_own_kv_cache(models, replace(plan, regions=largest))
    except DeviceMemoryError:
        return None


def _findings(models: RunShardings, capacity: Capacity) -> Iterator[Finding]:
    """Yield findings; ranks are ordered and the reshard planned only if that is decisive."""
    bare = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    try:
        # In any order a rank has the same part of the engine, which may itself leave too little.
        if rollout_regions(bare) == {Region.ROLLOUT_WEIGHTS}:
            with_own_kv_cache(models, bare)
        models = models.ordered
        plan = memory_plan(models, capacity.device_bytes, models.most_staging)
        if not plan.fits and Region.STAGING in plan.peak_instant.resident:
            # Only the upper bound of the messages may be too large.
            plan = memory_plan(models, capacity.device_bytes)
    except DeviceMemoryError as error:
        yield _no_room_for_kv_cache(models, capacity, str(error))
        return
    if not plan.fits:
        yield _device(models, plan)
    yield from _host(models, plan, capacity)


def _activations(models: RunShardings, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield the phase that exceeds the device most, including estimated activations."""
    estimates = activation_estimates(models.plan)
    working = {phase: plan.working_bytes(phase, each) for phase, each in estimates.items()}
    needs = {
        at.phase: most + plan.graphs + working[at.phase]
        for at, most in plan.moments
        if at.move is None and at.phase in working
    }
    if not needs:
        # Devices with the rollout only.
        return
    phase = max(needs, key=lambda each: needs[each])
    if plan.capacity_bytes is not None and needs[phase] > plan.capacity_bytes:
        there = plan.capacity_bytes // MIB
        recomputation = models.plan.planning(PHASE_ROLES[phase]).recomputation
        what = f"activations; use smaller micro-batches or {recomputation}"
        if working[phase] > estimates[phase]:
            what = f"the optimizer's step; use a larger {SIZE_KEYS['tp']}"
        text = (
            f"{_CAPACITY}={there}: {phase.value} needs about {needs[phase] / MIB:,.0f} "
            f"MiB, {working[phase] / MIB:,.0f} of them for {what}"
        )
        yield Finding(text, _CAPACITY, there, page=_PAGE)


def _device(models: RunShardings, plan: MemoryPlan) -> Finding:
    """Return the one key that makes the run fit, or else the memory that it needs."""
    assert plan.capacity_bytes is not None, "an unknown size is never too small"
    for advice in advice_on(plan, models):
        if advice.peak_bytes + plan.graphs <= plan.capacity_bytes:
            field, _, setting = advice.setting.partition("=")
            legal: Value = True if setting == "true" else int(setting)
            kv_cache_mib = models.plan.config.generate_config.kv_cache_mib
            value: Value = False if legal is True else kv_cache_mib
            return Finding(too_small(plan), field, value, (legal,), _PAGE)
    there, needed = plan.capacity_bytes // MIB, ceil(plan.needed_bytes / MIB)
    return Finding(too_small(plan), _CAPACITY, there, (needed,), _PAGE)


def _no_room_for_kv_cache(models: RunShardings, capacity: Capacity, text: str) -> Finding:
    """Return the share of the device that allows one sequence with all else, if possible."""
    assert capacity.device_bytes is not None, "a device of unknown size is never too small"
    config = models.plan.config
    plan = plan_without_kv_cache(models, capacity.device_bytes, models.most_staging)
    others = rollout_bytes(plan)
    least, _ = one_sequence(config, models.plan.cache_sizes)
    # The remainder is cut to whole MiB, so one more may be needed.
    share = ceil((others + least + MIB) / capacity.device_bytes * 100) / 100
    legal = (share,) if share <= 1 else ()
    return Finding(text, _SHARE, config.generate_config.gpu_memory_utilization, legal, _PAGE)


def _host(models: RunShardings, plan: MemoryPlan, capacity: Capacity) -> Iterator[Finding]:
    """Compare the host memory of one machine's workers with its capacity."""
    there, per_node = capacity.host_bytes, models.plan.topology.ranks_per_node
    needed = plan.host_bytes_of_node(per_node)
    if there is None or needed <= there:
        return
    keeping = [*keeping_less(models.plan, plan, -(-(needed - there) // per_node))]
    fixes = [each for each in keeping if each.legal and capacity.holds(each.plan, per_node)]
    best = min(fixes or keeping, key=lambda each: each.plan.host_bytes_of_node(per_node))
    field, value = best.field, models.plan.config.value_of(best.field)
    text = (
        f"{field}={spelled(value)}: the workers of one machine keep about {mib_text(needed)} on "
        f"the host, which has {mib_text(there)}"
    )
    yield Finding(text, field, value, legal=best.legal if fixes else (), page=_PAGE)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A key to change, all else unchanged."""

    setting: str
    """Key and value as written on the command line."""
    peak_bytes: int
    """Peak with this setting."""
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
        trained = trained_bytes(models, distributed_optimizer=True)
        shared = region_bytes(models, staging, trained)
        # The plan may be of one side of the run.
        there = {name: shared.get(name, old)[: len(old)] for name, old in plan.regions.items()}
        variants["megatron_training.use_distributed_optimizer=true"] = replace(plan, regions=there)
    smaller = _smaller_kv_cache(config, plan, models.plan.cache_sizes)
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


def _smaller_kv_cache(config: RunConfig, plan: MemoryPlan, sizes: CacheSizes) -> int | None:
    """Suggest a smaller KV cache: the largest that fits, or that no longer sets the peak.

    It holds at least one sequence.
    """
    now = plan.kv_cache_bytes
    if now is None or Region.KV_CACHE not in plan.peak_instant.resident:
        return None
    without = (most for at, most in plan.moments if Region.KV_CACHE not in at.resident)
    others = max(without, default=0)
    wanted = others if plan.fits else max(others, (plan.capacity_bytes or 0) - plan.graphs)
    least = -(-sizes.smallest(config.generate_config.max_model_len) // MIB)
    smaller = max((now - plan.peak_bytes + wanted) // MIB, least) * MIB
    return smaller if smaller < now else None
