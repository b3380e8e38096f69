"""The memory of a run's steps, predicted from its configuration. Needs no torch."""

from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, RankBytes, kv_cache_left, rollout_bytes, with_kv_cache
from mindrl.preflight.memory_regions import host_rounding, movable_regions, region_bytes, run_roles
from mindrl.preflight.run_shardings import RunShardings

_MIB = 1 << 20


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
        f"rl_config.check_memory=true: the run is predicted to need {plan.peak_bytes / _MIB:,.1f} "
        f"MiB of device memory on rank {plan.peak_rank} at '{plan.peak_instant.label}', and the "
        f"device has {plan.capacity_bytes / _MIB:,.1f} MiB; python cli/plan.py memory shows each "
        "phase and which switch would help"
    )


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
