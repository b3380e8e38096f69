"""Continue a run on fewer devices, in the legal layout nearest to its own."""

from collections.abc import Iterator, Mapping, Sequence
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

_FOLLOWING = (
    *("actor_config.archon.fsdp_size", "critic_config.archon.fsdp_size"),
    *("actor_config.archon.pp_schedule", "critic_config.archon.pp_schedule"),
    *("megatron_training.sequence_parallel", "profiler_config.profile_ranks"),
)
"""Keys without effect on results whose legal values depend on sizes: they take the nearest one."""
_Sizes = Mapping[str, int]
"""Sizes of a layout by key, such as `actor_config.tensor_model_parallel_size`."""


def shrunk(plan: RunPlan, platform: Platform, present: Sequence[int]) -> RunPlan:
    """Plan a run for the available devices, using as many of them as possible.

    Roles with their own sizes keep them, or the plan is refused.

    Args:
        plan: Previous plan of the run.
        platform: Platform of the devices.
        present: Devices of each living node, the largest number first.

    Raises:
        ConfigError: No layout of the run's model is legal on fewer devices.
    """
    own, per_node = plan.config, plan.config.rl_config.actor_resource.npus_per_node
    training = _coarser(own, [f"actor_config.{key}" for key in SIZE_KEYS.values()])
    rollout = _coarser(own, [f"generate_config.{key}" for key in ROLLOUT_SIZE_KEYS.values()])
    for count in range(min(own.world_size - 1, sum(present)), 0, -1):
        if not fits(node_shares(count, per_node), present):
            continue
        for config in _candidates(with_value(own, DEVICES, count), training, rollout):
            try:
                return check(config, platform, goes_on=True)
            except ConfigError:
                continue
    raise ConfigError(f"{DEVICES}={own.world_size}: this model cannot train on fewer")


def _coarser(config: RunConfig, keys: Sequence[str]) -> list[_Sizes]:
    """Return the sizes that shard the model at most as finely as the run's, nearest first."""
    choices = [divisors(config.value_of(key))[::-1] for key in keys]
    found = sorted(product(*choices), key=prod, reverse=True)
    return [dict(zip(keys, sizes, strict=True)) for sizes in found]


def _candidates(
    config: RunConfig, training: Sequence[_Sizes], rollout: Sequence[_Sizes]
) -> Iterator[RunConfig]:
    """Yield the legal combinations of these sizes on the devices of a configuration.

    Few sizes fit a number of devices and sequences: findings of the others would take minutes.
    """
    for sizes in training:
        if not _shares(config, sizes):
            continue
        # The coarsest rollout is always legal, so only the training sizes are judged.
        adapted = _adapted(_with_values(config, {**sizes, **rollout[-1]}))
        if adapted is None:
            continue
        changed = (_with_values(adapted, each) for each in rollout)
        yield from (each for each in changed if not findings(each))


def _shares(config: RunConfig, sizes: _Sizes) -> bool:
    """Return whether whole replicas fill the devices and get equal numbers of sequences."""
    cut = prod(sizes[f"actor_config.{SIZE_KEYS[name]}"] for name in ("tp", "cp", "pp"))
    replicas, rest = divmod(config.world_size, cut)
    return not rest and config.sequences_per_update % replicas == 0


def _adapted(config: RunConfig) -> RunConfig | None:
    """Return the configuration with legal values of keys that follow its sizes.

    None if another rule is broken.
    """
    for role in config.roles:
        key, sizes = f"{role}_config.num_layer_list", config.layout_keys(role)
        layers = config.value_of(key)
        if layers and len(layers) != prod(config.value_of(sizes[name]) for name in ("pp", "vpp")):
            config = with_value(config, key, None)
    found = findings(config)
    if any(each.field not in _FOLLOWING or not each.legal for each in found):
        return None
    changed = _with_values(config, {each.field: each.legal[0] for each in found})
    return None if found and findings(changed) else changed


def _with_values(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    for key, value in values.items():
        config = with_value(config, key, value)
    return config
