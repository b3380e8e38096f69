"""Capacity and use of device memory, as the device reports them."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class DeviceAccount:
    """Bytes of the device of this process."""

    capacity: int
    """Total memory of the device."""
    taken: int
    """Memory used by all processes and libraries."""
    allocated: int
    """Memory of this process's tensors, excluding those in private memory pools, such as an
    engine's."""
    peak_allocated: int
    """Maximum of `allocated` since the last account."""


def device_account(device_type: str) -> DeviceAccount | None:
    """Query the allocator and reset its peak; None on CPU, which has no such counters."""
    if device_type == "cpu":
        return None
    device = torch.get_device_module(device_type)
    free, capacity = device.mem_get_info()
    pooled = _pooled_bytes(device)
    account = DeviceAccount(
        capacity=capacity,
        taken=capacity - free,
        allocated=device.memory_allocated() - pooled,
        peak_allocated=device.max_memory_allocated() - pooled,
    )
    device.reset_peak_memory_stats()
    return account


def free_bytes(device_type: str) -> int | None:
    """Return the free bytes of the device; None on CPU."""
    if device_type == "cpu":
        return None
    free: int = torch.get_device_module(device_type).mem_get_info()[0]
    return free


def give_back_unused(device_type: str) -> None:
    """Release the memory that torch's allocator caches; no effect on CPU."""
    if device_type != "cpu":
        torch.get_device_module(device_type).empty_cache()


def finish_device_work(device_type: str) -> None:
    """Wait until the device has finished everything; no effect on CPU."""
    if device_type != "cpu":
        torch.get_device_module(device_type).synchronize()


def _pooled_bytes(device: Any) -> int:
    """Return the bytes allocated from memory pools, including those without physical pages.

    The allocator counts a sleeping engine as if it were awake.
    """
    segments = device.memory_snapshot()
    return sum(each["allocated_size"] for each in segments if any(each["segment_pool_id"]))
