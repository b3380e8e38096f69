"""What a device has, and what is taken of it, by the device's own account."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class DeviceAccount:
    """Bytes of the device of this process."""

    capacity: int
    """Of the device, whoever has it."""
    taken: int
    """Of the device, by all processes and libraries."""
    allocated: int
    """By tensors of this process, but those in a memory pool of their own, as an engine's are."""
    peak_allocated: int
    """The most since the last account."""


def device_account(device_type: str) -> DeviceAccount | None:
    """Ask the allocator; None where the device is the host, which keeps no such account."""
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
    """Return what nobody has taken of the device; None where the device is the host."""
    if device_type == "cpu":
        return None
    free: int = torch.get_device_module(device_type).mem_get_info()[0]
    return free


def give_back_unused(device_type: str) -> None:
    """Let other allocators have what torch's own keeps for later; on the host there is one only."""
    if device_type != "cpu":
        torch.get_device_module(device_type).empty_cache()


def _pooled_bytes(device: Any) -> int:
    """Return what memory pools have given out, whether or not pages lie behind it now.

    The allocator counts an engine that sleeps as if it were awake.
    """
    segments = device.memory_snapshot()
    return sum(each["allocated_size"] for each in segments if any(each["segment_pool_id"]))
