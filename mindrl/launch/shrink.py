"""Continue a run on fewer devices, in the legal layout nearest to its own."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from mindrl.cluster.ray_cluster import fits, node_shares
from mindrl.config.changed import with_value
from mindrl.config.finding import divisors
from mindrl.config.layout_keys import DEVICES, ROLLOUT_SIZE_KEYS, SIZE_KEYS
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.platform.device import Platform
from mindrl.preflight.checks import check
from mindrl.preflight.run_shardings import RunPlan

_SIZES = [
    *(f"actor_config.{key}" for key in SIZE_KEYS.values()),
    *(f"generate_config.{key}" for key in ROLLOUT_SIZE_KEYS.values()),
]
"""Sizes that may shrink. Roles with their own sizes keep them, or the plan is refused."""


def shrunk(plan: RunPlan, platform: Platform, present: Sequence[int]) -> RunPlan:
    """Plan a run for the available devices, using as many of them as possible.

    Args:
        plan: Previous plan of the run.
        platform: Platform of the devices.
        present: Devices of each living node, the largest number first.

    Raises:
        ConfigError: No layout of the run's model is legal on fewer devices.
    """
    per_node = plan.config.rl_config.actor_resource.npus_per_node
    for count in range(min(plan.config.world_size - 1, sum(present)), 0, -1):
        if not fits(node_shares(count, per_node), present):
            continue
        for config in _candidates(with_value(plan.config, DEVICES, count)):
            if findings(config):
                # Cheaper than a check, and most candidates end here.
                continue
            try:
                return check(config, platform, goes_on=True)
            except ConfigError:
                continue
    raise ConfigError(f"{DEVICES}={plan.config.world_size}: this model cannot train on fewer")


def _candidates(config: RunConfig) -> Iterator[RunConfig]:
    """Yield layouts that shard the model at most as finely as the run's own, nearest first."""
    own = [int(config.value_of(key)) for key in _SIZES]
    choices = [divisors(most)[::-1] for most in own]
    for sizes in sorted(product(*choices), key=lambda sizes: prod(own) / prod(sizes)):
        changed = config
        for key, size in zip(_SIZES, sizes, strict=True):
            changed = with_value(changed, key, size)
        yield changed
