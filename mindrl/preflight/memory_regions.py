"""What a configuration puts on each device: the bytes of every region, and which may leave."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from mindrl.config.layout_sizes import Role
from mindrl.config.layouts import rollout_layout
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.regions import Region
from mindrl.memory.schedule import Roles
from mindrl.models.decoder import Head, Side, rollout_side, training_side
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import ExpertStorage
from mindrl.models.memory import held_bytes, kv_bytes_per_token, trained_bytes
from mindrl.platform.garbage import no_collection
from mindrl.platform.host_blocks import rounded
from mindrl.preflight.run_layouts import (
    bucket_bytes,
    ordered_layouts,
    own_layouts,
    topology,
    train_dtype,
)
from mindrl.preflight.shipped import planned_description, sizes_path
from mindrl.resharding.cells import Cell
from mindrl.resharding.plan import ReshardPlan, cells_for_bucket, plan_sides

Counts = NDArray[np.int64]
RegionBytes = Mapping[Region, Counts]
"""Bytes of each region on each rank."""

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


@dataclass(frozen=True, kw_only=True)
class RunModels:
    """The models of a run, and who holds which part of them; takes seconds for large ones."""

    descriptions: Mapping[Role, ModelDescription]
    layouts: Mapping[Role, TrainLayout]
    sides: Mapping[Role, Side]
    rollout: Side
    cells: list[Cell] | None
    """What travels from the actor's layout to the rollout's; None where that was not looked at."""
    reshard: ReshardPlan | None
    """How it travels; None where that was not planned."""
    most_staging: int
    """Bound on the bytes of messages that a rank has in flight then."""
    kv_bytes_per_token: int

    @cached_property
    def staging(self) -> Counts:
        """Largest bytes of messages that each rank has in flight; without a plan, the bound."""
        if self.reshard is None:
            return np.full(len(self.rollout.held_by), self.most_staging, dtype=np.int64)
        return self.reshard.peak_staging


def read_models(config: RunConfig) -> RunModels:
    """Read the models of a run from their config.json files, and plan the reshard.

    Args:
        config: Without findings.

    Raises:
        ModelError: A model folder does not hold a known model.
    """
    return with_reshard(config, ordered_models(config))


def with_reshard(config: RunConfig, models: RunModels) -> RunModels:
    """Plan the reshard, which takes most of the time for large models."""
    with no_collection():
        reshard = plan_sides(
            models.sides["actor"],
            models.rollout,
            topology(config),
            bucket_bytes=bucket_bytes(config),
            cells=models.cells,
        )
        return replace(models, reshard=reshard)


def ordered_models(config: RunConfig) -> RunModels:
    """Read the models, with the ranks in the order of the run; no reshard is planned."""
    with no_collection():
        models = bounding_models(config)
        source, target = models.sides["actor"], models.rollout
        cells = cells_for_bucket(source, target, bucket_bytes(config))
        layouts = ordered_layouts(config, source, target, cells)
        sides = _sides(config, models.descriptions, layouts)
        return replace(models, layouts=layouts, sides=sides, cells=cells)


def bounding_models(config: RunConfig) -> RunModels:
    """Read the models, with the ranks in Megatron's own order; nothing is looked for."""
    descriptions = {role: planned_description(sizes_path(config, role)) for role in config.roles}
    layouts, target = own_layouts(config), rollout_layout(config)
    dtype = config.generate_config.dtype
    return RunModels(
        descriptions=descriptions,
        layouts=layouts,
        sides=_sides(config, descriptions, layouts),
        rollout=rollout_side(descriptions["actor"], target, dtype=dtype),
        cells=None,
        reshard=None,
        most_staging=bucket_bytes(config),
        kv_bytes_per_token=kv_bytes_per_token(descriptions["actor"], target, dtype),
    )


def region_bytes(config: RunConfig, models: RunModels) -> dict[Region, Counts]:
    """Return the bytes of each region that the run has on each rank, without the KV cache."""
    shared = config.megatron_training.use_distributed_optimizer
    found: dict[Region, Counts] = {
        Region.ROLLOUT_WEIGHTS: np.array(held_bytes(models.rollout)),
        Region.STAGING: models.staging,
    }
    for role, side in models.sides.items():
        if role in _READ:
            found[_READ[role]] = np.array(held_bytes(side))
            continue
        ranks = trained_bytes(side, models.layouts[role], distributed_optimizer=shared)
        parts = [(rank.weights, rank.gradients, rank.optimizer) for rank in ranks]
        found |= dict(zip(_TRAINED[role], np.array(parts).T, strict=True))
    return found


def host_rounding(models: RunModels) -> Counts:
    """Return what rounding adds at most to what each rank keeps on the host."""
    tensors = [
        [
            sum(len(side.shards[side.twins.get(shard, shard)]) for shard in held)
            for held in side.held_by
        ]
        for side in models.sides.values()
    ]
    counts: Counts = np.array(tensors, dtype=np.int64).sum(axis=0)
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


def _sides(
    config: RunConfig,
    models: Mapping[Role, ModelDescription],
    layouts: Mapping[Role, TrainLayout],
) -> dict[Role, Side]:
    """Return who holds which part of each model; roles that are alike share the answer."""

    @cache
    def side(
        model: ModelDescription, layout: TrainLayout, experts: ExpertStorage, head: Head
    ) -> Side:
        return training_side(model, layout, dtype=train_dtype(config), experts=experts, head=head)

    found: dict[Role, Side] = {}
    for role, layout in layouts.items():
        learning = {"critic": config.critic_config, "reward": None}.get(role, config.actor_config)
        grouped = learning is not None and learning.moe_grouped_gemm
        head: Head = "value" if role in ("critic", "reward") else "vocabulary"
        found[role] = side(models[role], layout, "grouped" if grouped else "sequential", head)
    return found
