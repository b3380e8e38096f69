"""Roles of a rank, and the ranks that form the world of each role."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch.distributed as dist

from mindrl.config.layout_keys import Role
from mindrl.layouts.layout import TrainLayout
from mindrl.platform.device import Platform
from mindrl.platform.rendezvous import World
from mindrl.preflight.run_shardings import RunPlan


def roles_here(plan: RunPlan) -> dict[Role, TrainLayout]:
    """Return the layouts of the roles on this rank."""
    rank = dist.get_rank()
    return {role: layout for role, layout in plan.layouts.items() if rank in layout.ranks}


def role_worlds(plan: RunPlan, platform: Platform) -> dict[Role, World]:
    """Create a world for each role's ranks, unless they are all ranks; return this rank's.

    A collective over all ranks, which create the sets in the same order.
    """
    rank, everywhere = dist.get_rank(), range(dist.get_world_size())
    places = {layout.ranks for layout in plan.layouts.values()} - {everywhere}
    timeout = timedelta(minutes=plan.config.megatron_training.distributed_timeout_minutes)
    made = {
        ranks: World(platform, ranks, f"ranks {ranks.start} to {ranks.stop - 1}", number, timeout)
        for number, ranks in enumerate(sorted(places, key=lambda each: (each.start, each.stop)), 1)
        if rank in ranks
    }
    here = roles_here(plan).items()
    return {role: made[layout.ranks] for role, layout in here if layout.ranks in made}


def inside(worlds: Mapping[Role, World], role: Role) -> AbstractContextManager[None]:
    """Make the ranks of a role the default group in the body."""
    return worlds[role].active() if role in worlds else nullcontext()
