"""The memory of a run's steps, predicted from its configuration. Needs no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, RankBytes, kv_cache_left, rollout_bytes, with_kv_cache
from mindrl.memory.regions import Region
from mindrl.memory.schedule import Roles
from mindrl.observability.units import MIB, mib_text
from mindrl.platform.host_blocks import rounded
from mindrl.preflight.run_shardings import RunShardings
from mindrl.training.planning import trained_bytes

_STORAGES_PER_TENSOR = 4
"""At most: weight, main weight, two moments; each has a place of its own on the host."""
_TRAINED: Mapping[Role, tuple[Region, Region, Region]] = {
    "actor": (Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER),
    "critic": (Region.CRITIC_WEIGHTS, Region.CRITIC_GRADIENTS, Region.CRITIC_OPTIMIZER),
}
_READ: Mapping[Role, Region] = {
    "ref": Region.REFERENCE_WEIGHTS,
    "reward": Region.REWARD_WEIGHTS,
}


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A key by which a region may leave the device while it is not needed."""

    section: str
    key: str
    on: bool


def memory_plan(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict the memory of a run's steps.

    Where the capacity of a device is not known, `generate_config.kv_cache_mib` alone can say how
    large the KV cache is.

    Raises:
        ConfigError: `generate_config.kv_cache_mib` does not hold one sequence.
        DeviceMemoryError: What the device has left for the KV cache does not hold one.
    """
    return with_own_kv_cache(models, plan_without_kv_cache(models, capacity_bytes, staging))


def with_own_kv_cache(models: RunShardings, plan: MemoryPlan) -> MemoryPlan:
    """Return a plan with the KV cache that a run takes; as it is where nothing says its size.

    Raises:
        ConfigError: As `memory_plan`.
        DeviceMemoryError: As `memory_plan`.
    """
    nbytes = _kv_cache_bytes(models.plan.config, plan, models.plan.kv_bytes_per_token)
    return plan if nbytes is None else with_kv_cache(plan, nbytes)


def plan_without_kv_cache(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict all but the KV cache; without `staging` the reshard is planned, which says it."""
    config = models.plan.config
    return MemoryPlan(
        capacity_bytes=capacity_bytes,
        roles=run_roles(config),
        movable=movable_regions(config),
        regions=region_bytes(
            models,
            models.staging if staging is None else staging,
            distributed_optimizer=config.megatron_training.use_distributed_optimizer,
        ),
        host_rounding=host_rounding(models),
    )


def too_small(plan: MemoryPlan) -> str:
    """Say by how much a device is too small, and when."""
    assert plan.capacity_bytes is not None, "nothing is too small where nothing is known"
    return (
        f"rl_config.check_memory=true: the run is predicted to need {mib_text(plan.peak_bytes)} "
        f"of device memory on rank {plan.peak_rank} at '{plan.peak_instant.label}', and the "
        f"device has {mib_text(plan.capacity_bytes)}; python cli/plan.py memory shows each "
        "phase and which switch would help"
    )


def one_sequence(config: RunConfig, per_token: int) -> tuple[int, str]:
    """Return the bytes of the smallest KV cache, that of one whole sequence, and words for it."""
    length = config.generate_config.max_model_len
    least = per_token * length
    return least, (
        f"one sequence of generate_config.max_model_len={length} tokens takes "
        f"{mib_text(least)} ({per_token:,} bytes a token)"
    )


def region_bytes(
    models: RunShardings, staging: RankBytes, *, distributed_optimizer: bool
) -> dict[Region, RankBytes]:
    """Return the bytes of each region on each rank, the KV cache aside.

    `staging` is that of messages in flight; with `distributed_optimizer` replicas share its states.
    """
    found: dict[Region, RankBytes] = {
        Region.ROLLOUT_WEIGHTS: np.array(models.rollout.held_bytes()),
        Region.STAGING: staging,
    }
    for role, side in models.training.items():
        if role in _READ:
            found[_READ[role]] = np.array(side.held_bytes())
            continue
        layout = models.plan.layouts[role]
        ranks = trained_bytes(side, layout, distributed_optimizer=distributed_optimizer)
        parts = [(rank.weights, rank.gradients, rank.optimizer) for rank in ranks]
        found |= dict(zip(_TRAINED[role], np.array(parts).T, strict=True))
    return found


def host_rounding(models: RunShardings) -> RankBytes:
    """Return what rounding adds at most to what each rank keeps on the host."""
    tensors = [
        [
            sum(len(side.shards[side.twins.get(shard, shard)]) for shard in held)
            for held in side.held_by
        ]
        for side in models.training.values()
    ]
    counts: RankBytes = np.array(tensors, dtype=np.int64).sum(axis=0)
    return counts * _STORAGES_PER_TENSOR * rounded(1)


def run_roles(config: RunConfig) -> Roles:
    """Return which roles a run has."""
    return Roles(
        reference="ref" in config.roles,
        critic="critic" in config.roles,
        reward="reward" in config.roles,
    )


def offload_switches(config: RunConfig) -> dict[Region, Switch]:
    """Return the key of each region that a run has and that leaves only if asked to."""
    return {
        region: Switch(section=section, key=key, on=getattr(getattr(config, section), key))
        for role, region, section, key in _switch_keys()
        if role in config.roles
    }


def movable_regions(config: RunConfig) -> frozenset[Region]:
    """Return what may leave the device while it is not needed, besides what the rollout has."""
    return frozenset(region for region, switch in offload_switches(config).items() if switch.on)


def _kv_cache_bytes(config: RunConfig, plan: MemoryPlan, per_token: int) -> int | None:
    """Return the size of the KV cache; None where nothing says it."""
    generate = config.generate_config
    least, sequence = one_sequence(config, per_token)
    if generate.kv_cache_mib is not None:
        if generate.kv_cache_mib * MIB < least:
            raise ConfigError(f"generate_config.kv_cache_mib={generate.kv_cache_mib}: {sequence}")
        return generate.kv_cache_mib * MIB
    if plan.capacity_bytes is None:
        return None
    share = int(plan.capacity_bytes * generate.gpu_memory_utilization)
    others = rollout_bytes(plan)
    left = kv_cache_left(share, others)
    if left < least:
        raise DeviceMemoryError(
            f"generate_config.gpu_memory_utilization={generate.gpu_memory_utilization:g} of "
            f"{mib_text(plan.capacity_bytes)} is {mib_text(share)}; what else lies on "
            f"the device during rollout takes {mib_text(others)}, which leaves "
            f"{left / MIB:,.0f} MiB for the KV cache; {sequence}"
        )
    return left


def _switch_keys() -> Iterator[tuple[Role, Region, str, str]]:
    sections: Mapping[Role, str] = {"actor": "generate_config", "critic": "critic_config"}
    for role, section in sections.items():
        for region, part in zip(_TRAINED[role], ("param", "grad", "optimizer"), strict=True):
            yield role, region, section, f"offload_train_{part}"
    for role, region in _READ.items():
        yield role, region, f"{role}_config", "offload_param"
