"""The device of a worker, sized by the plan of its memory."""

from dataclasses import dataclass

import psutil
import torch.distributed as dist

from mindrl.config.run import RunConfig
from mindrl.errors import DeviceMemoryError
from mindrl.launch.layouts import topology
from mindrl.launch.memory_plan import MemoryPlan, memory_plan, too_small, with_kv_cache
from mindrl.launch.memory_regions import RunModels, read_models
from mindrl.platform.device_memory import device_account
from mindrl.platform.host_arena import HostArena, rounded
from mindrl.workers.device import Device
from mindrl.workers.device_ledger import DeviceLedger

_STORAGES_PER_TENSOR = 4
"""At most: weight, main weight, two moments; each has a place of its own on the host."""


@dataclass(frozen=True, kw_only=True)
class WorkerMemory:
    """What a worker may take, and gives the engine."""

    plan: MemoryPlan
    arena_bytes: int
    kv_cache_bytes: int


def plan_worker_memory(config: RunConfig, device_type: str) -> WorkerMemory:
    """Plan the memory of this rank.

    Raises:
        DeviceMemoryError: The device is too small, and `rl_config.check_memory` asks.
    """
    models = read_models(config)
    plan = memory_plan(config, _capacity(config, device_type), models)
    kv_cache_bytes = plan.kv_cache_bytes
    if kv_cache_bytes is None:
        # A host without a bound: the share that all its workers can have at once.
        share = psutil.virtual_memory().total // topology(config).ranks_per_node
        kv_cache_bytes = memory_plan(config, share, models).kv_cache_bytes
        assert kv_cache_bytes is not None, "a share has a size"
        plan = with_kv_cache(plan, kv_cache_bytes)
    if config.rl_config.check_memory and not plan.fits:
        raise DeviceMemoryError(too_small(plan))
    return WorkerMemory(
        plan=plan,
        arena_bytes=_arena_bytes(plan, models, dist.get_rank()),
        kv_cache_bytes=kv_cache_bytes,
    )


def make_device(config: RunConfig, device_type: str, memory: WorkerMemory) -> Device:
    """Make the account of this rank's device and the host memory behind it.

    Raises:
        HostMemoryError: The host has no room for what has to leave the device.
    """
    return Device(
        device_type=device_type,
        ledger=DeviceLedger(memory.plan.capacity_bytes),
        arena=HostArena(
            memory.arena_bytes,
            device_type=device_type,
            sharers=topology(config).ranks_per_node,
        ),
        movable=memory.plan.movable,
    )


def _capacity(config: RunConfig, device_type: str) -> int | None:
    if config.rl_config.device_memory_mib is not None:
        return config.rl_config.device_memory_mib << 20
    account = device_account(device_type)
    return None if account is None else account.capacity


def _arena_bytes(plan: MemoryPlan, models: RunModels, rank: int) -> int:
    """Return what this rank keeps on the host, and what rounding adds to each storage."""
    tensors = sum(len(side.table(rank)) for side in models.sides.values())
    return int(plan.host_bytes[rank]) + tensors * _STORAGES_PER_TENSOR * rounded(1)
