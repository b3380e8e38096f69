"""The device of a worker, with a memory plan that all ranks agree on."""

from dataclasses import replace

import torch.distributed as dist

from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, with_kv_cache
from mindrl.platform.device_memory import device_account
from mindrl.platform.host_arena import HostArena, require_host_memory
from mindrl.platform.host_memory import memory_bound
from mindrl.preflight.memory_plan import memory_plan, too_small, with_own_kv_cache
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.workers.device import WorkerDevice
from mindrl.workers.device_ledger import DeviceLedger


def make_device(models: RunShardings, device_type: str) -> WorkerDevice:
    """Create the ledger of this rank's device and its host memory. A collective.

    Raises:
        DeviceMemoryError: The device is too small, with `rl_config.check_memory`.
        HostMemoryError: The host has no room for the offloaded regions.
    """
    plan, rank = _planned(models, device_type), dist.get_rank()
    if models.plan.config.rl_config.check_memory and not plan.fits:
        raise DeviceMemoryError(too_small(plan))
    arena_bytes = int(plan.host_bytes[rank])
    sizes, per_node = _of_all_ranks(arena_bytes), models.plan.topology.ranks_per_node
    node = rank // per_node
    # All ranks check before any allocates: pinned memory is no longer available.
    require_host_memory(sum(sizes[node * per_node : (node + 1) * per_node]))
    dist.barrier()
    return WorkerDevice(
        device_type=device_type,
        ledger=DeviceLedger(plan.capacity_bytes),
        arena=HostArena(arena_bytes, device_type=device_type),
        plan=plan,
    )


def _planned(models: RunShardings, device_type: str) -> MemoryPlan:
    """Plan the memory of a step, including the KV cache. A collective."""
    plan = memory_plan(models, capacity_of(models.plan, device_type))
    return plan if plan.side == "training" else with_any_kv_cache(models, plan)


def capacity_of(plan: RunPlan, device_type: str) -> int | None:
    """Return the capacity of this process's device, real or configured; None if unknown."""
    asked, account = plan.config.rl_config.device_memory_bytes, device_account(device_type)
    there = account.capacity if account is not None else None
    return min((bound for bound in (asked, there) if bound is not None), default=None)


def with_any_kv_cache(models: RunShardings, plan: MemoryPlan) -> MemoryPlan:
    """Return a plan with a KV cache of a size that all ranks agree on. A collective."""
    if plan.kv_cache_bytes is not None:
        return plan
    # A host without a limit: the share that all its workers can use at once.
    config = models.plan.config
    per_node = min(config.rl_config.actor_resource.npus_per_node, config.devices)
    share = memory_bound() // per_node
    of_share = with_own_kv_cache(models, replace(plan, capacity_bytes=share)).kv_cache_bytes
    assert of_share is not None, "a plan for a device has the size of the KV cache"
    # Machines may differ, but the engines of a replica must agree.
    return with_kv_cache(plan, min(_of_all_ranks(of_share)))


def _of_all_ranks(value: int) -> list[int]:
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
