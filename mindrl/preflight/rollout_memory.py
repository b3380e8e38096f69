"""The memory of a rollout replica on devices of its own, predicted. Needs no torch."""

import numpy as np

from mindrl.memory.plan import MemoryPlan, RankBytes, rollout_side
from mindrl.preflight.memory_plan import with_own_kv_cache
from mindrl.preflight.run_shardings import RunShardings


def rollout_memory_plan(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict the memory of a rollout replica on devices of its own.

    Raises as `memory_plan`.
    """
    config = models.plan.config
    messages = models.staging if staging is None else staging
    ranks = slice(config.world_size, None)
    weights = np.array(models.rollout.held_bytes())[ranks]
    return with_own_kv_cache(models, rollout_side(capacity_bytes, weights, messages[ranks]))
