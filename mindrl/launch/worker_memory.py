"""The device of a worker, sized by the plan of its memory."""

from dataclasses import replace

import torch.distributed as dist

from mindrl.config.run import RunConfig
from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan, with_kv_cache
from mindrl.platform.device_memory import device_account
from mindrl.platform.host_arena import HostArena, require_host_memory
from mindrl.platform.host_memory import memory_bound
from mindrl.preflight.memory_plan import memory_plan, too_small, with_own_kv_cache
from mindrl.preflight.run_shardings import RunShardings
from mindrl.workers.device import WorkerDevice
from mindrl.workers.device_ledger import DeviceLedger


def make_device(models: RunShardings, device_type: str) -> WorkerDevice:
    """Make the account of this rank's device and the host memory behind it. A collective.

    Raises:
        DeviceMemoryError: The device is too small, and `rl_config.check_memory` asks.
        HostMemoryError: The host has no room for what has to leave the device.
    """
    plan, rank = _planned(models, device_type), dist.get_rank()
    if models.plan.config.rl_config.check_memory and not plan.fits:
        raise DeviceMemoryError(too_small(plan))
    arena_bytes = int(plan.host_bytes[rank])
    sizes, per_node = _of_all_ranks(arena_bytes), models.plan.topology.ranks_per_node
    node = rank // per_node
    # Nobody allocates before all have looked: what one has pinned is no longer available.
    require_host_memory(sum(sizes[node * per_node : (node + 1) * per_node]))
    dist.barrier()
    return WorkerDevice(
        device_type=device_type,
        ledger=DeviceLedger(plan.capacity_bytes),
        arena=HostArena(arena_bytes, device_type=device_type),
        plan=plan,
    )


def _planned(models: RunShardings, device_type: str) -> MemoryPlan:
    """Plan the memory of a step, the KV cache included. A collective."""
    plan = memory_plan(models, _capacity(models.plan.config, device_type))
    if plan.kv_cache_bytes is not None:
        return plan
    # A host without a bound: the share that all its workers can have at once.
    share = memory_bound() // models.plan.topology.ranks_per_node
    of_share = with_own_kv_cache(models, replace(plan, capacity_bytes=share)).kv_cache_bytes
    assert of_share is not None, "a share has a size"
    # Machines may differ, and the engines of a replica must agree.
    return with_kv_cache(plan, min(_of_all_ranks(of_share)))


def _capacity(config: RunConfig, device_type: str) -> int | None:
    asked, account = config.rl_config.device_memory_mib, device_account(device_type)
    bounds = [asked << 20] if asked is not None else []
    bounds += [account.capacity] if account is not None else []
    return min(bounds, default=None)


def _of_all_ranks(value: int) -> list[int]:
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
