"""Predicted memory of a rollout replica on its own devices. Needs no torch."""

from collections.abc import Iterator
from dataclasses import replace

from mindrl.config.finding import Finding
from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, RankBytes, rollout_side
from mindrl.preflight.graph_memory import graph_bytes
from mindrl.preflight.memory_plan import Capacity, too_small, with_own_kv_cache
from mindrl.preflight.picture_memory import picture_bytes
from mindrl.preflight.run_shardings import RunShardings

_PAGE = "docs/how-to/plan-a-run.md#plan-the-memory"


def rollout_memory_plan(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict the memory of a rollout replica on its own devices.

    Raises as `memory_plan`.
    """
    config = models.plan.config
    messages = models.staging if staging is None else staging
    ranks = slice(config.world_size, None)
    weights = models.rollout_bytes[ranks]
    side = rollout_side(capacity_bytes, weights, messages[ranks], models.plan.rollout_layers)
    pictures, graphs = picture_bytes(models.plan), graph_bytes(models.plan)
    return with_own_kv_cache(models, replace(side, pictures=pictures, graphs=graphs))


def rollout_memory_findings(models: RunShardings, capacity: Capacity) -> Iterator[Finding]:
    """Yield what does not fit on the devices of a separate replica."""
    config, there = models.plan.config, capacity.device_bytes
    # Servers are the responsibility of the user who started them.
    if not (config.starts_engines and config.rl_config.check_memory and there is not None):
        return
    try:
        plan = rollout_memory_plan(models, there, models.most_staging)
        if not plan.fits:
            # Only the upper bound of the messages may be too large.
            plan = rollout_memory_plan(models.ordered, there)
    except DeviceMemoryError as error:
        field = "generate_config.gpu_memory_utilization"
        yield Finding(str(error), field, config.generate_config.gpu_memory_utilization, (), _PAGE)
        return
    if not plan.fits:
        field = "generate_config.kv_cache_mib"
        text = f"{field}={config.generate_config.kv_cache_mib}: {too_small(plan)}"
        yield Finding(text, field, config.generate_config.kv_cache_mib, (), _PAGE)
