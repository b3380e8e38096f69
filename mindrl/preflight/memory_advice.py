"""Which single key would lower the peak of a memory plan, and by how much."""

from dataclasses import dataclass, replace

from mindrl.config.run import RunConfig
from mindrl.memory.plan import MemoryPlan, with_kv_cache
from mindrl.memory.regions import Region
from mindrl.observability.units import MIB
from mindrl.preflight.memory_plan import offload_switches, region_bytes
from mindrl.preflight.run_shardings import RunShardings


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
        f"{switch.section}.{switch.key}=true": replace(plan, movable=plan.movable | {region})
        for region, switch in offload_switches(config).items()
        if not switch.on
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
    with_cache = [Region.KV_CACHE in instant.resident for instant in plan.instants]
    others = max(
        (
            int(total.max())
            for total, there in zip(plan.totals, with_cache, strict=True)
            if not there
        ),
        default=0,
    )
    wanted = others if plan.fits else max(others, plan.capacity_bytes or 0)
    least = -(-per_token * config.generate_config.max_model_len // MIB)
    smaller = max((now - plan.peak_bytes + wanted) // MIB, least) * MIB
    return smaller if smaller < now else None
