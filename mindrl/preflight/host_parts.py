"""What the workers of a run keep on the host, and the keys that decide it. Needs no torch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mindrl.config.finding import Value
from mindrl.config.model_folders import further_models
from mindrl.config.run import RunConfig
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import ROLE_REGIONS, Region
from mindrl.observability.units import MIB
from mindrl.preflight.picture_memory import picture_copies
from mindrl.preflight.run_shardings import RunPlan


def offload_keys(config: RunConfig) -> dict[Region, str]:
    """Return the key of each region of a run that is offloaded only if configured.

    A role that has devices for itself always stays on them.
    """
    keys: dict[Region, str] = {}
    if len(config.roles) == 1 and (config.is_apart or not config.rolls_out):
        return keys
    for role, regions in ROLE_REGIONS.items():
        section = "generate_config" if role == "actor" else f"{role}_config"
        parts = ("train_param", "train_grad", "train_optimizer") if len(regions) > 1 else ("param",)
        if role in config.roles:
            names = zip(regions, parts, strict=True)
            keys |= {region: f"{section}.offload_{part}" for region, part in names}
    return keys


class LessOnHost(NamedTuple):
    """A plan with less on the host, by one key."""

    field: str
    legal: tuple[Value, ...]
    """Its value in the plan; empty if no value does it."""
    plan: MemoryPlan


def keeping_less(models: RunPlan, plan: MemoryPlan, excess: int) -> Iterator[LessOnHost]:
    """Yield a plan without each part of the host's memory; with `excess` fewer bytes of pictures.

    `excess` is of each rank.
    """
    config = models.config
    movable = plan.movable & plan.regions.keys()
    if plan.waiting is not None:
        # Teachers that take turns have to leave the device.
        movable -= {Region.TEACHER_WEIGHTS}
    for region, key in offload_keys(config).items():
        if region in movable:
            yield LessOnHost(key, (False,), replace(plan, movable=plan.movable - {region}))
    for key, copies in picture_copies(models).items():
        mib = max(1, (now := config.value_of(key)) - -(-excess // (copies * MIB)))
        host = plan.pictures.host - copies * (now - mib) * MIB
        yield LessOnHost(key, (mib,), replace(plan, pictures=replace(plan.pictures, host=host)))
    if plan.routes is not None:
        yield LessOnHost("actor_config.router_replay", ("none",), replace(plan, routes=None))
    for key in further_models(config, "teacher").values():
        yield LessOnHost(key, (), replace(plan, waiting=None))
