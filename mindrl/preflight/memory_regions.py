"""What a configuration puts on each device: the bytes of every region, and which may leave."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.memory.plan import RankBytes
from mindrl.memory.regions import Region
from mindrl.memory.schedule import Roles
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


def _switch_keys() -> Iterator[tuple[Role, Region, str, str]]:
    sections: Mapping[Role, str] = {"actor": "generate_config", "critic": "critic_config"}
    for role, section in sections.items():
        for region, part in zip(_TRAINED[role], ("param", "grad", "optimizer"), strict=True):
            yield role, region, section, f"offload_train_{part}"
    for role, region in _READ.items():
        yield role, region, f"{role}_config", "offload_param"
