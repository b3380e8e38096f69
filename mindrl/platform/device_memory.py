"""What a device has, and what is taken of it, by the device's own account."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class DeviceAccount:
    """Bytes of the device of this process."""

    capacity: int
    """Of the device, whoever has it."""
    taken: int
    """Of the device, by all processes and libraries."""
    allocated: int
    """By tensors of this process."""
    peak_allocated: int
    """The most since the last account."""


def device_account(device_type: str) -> DeviceAccount | None:
    """Ask the allocator; None where the device is the host, which keeps no such account."""
    if device_type == "cpu":
        return None
    device = torch.get_device_module(device_type)
    free, capacity = device.mem_get_info()
    account = DeviceAccount(
        capacity=capacity,
        taken=capacity - free,
        allocated=device.memory_allocated(),
        peak_allocated=device.max_memory_allocated(),
    )
    device.reset_peak_memory_stats()
    return account


def give_back_unused(device_type: str) -> None:
    """Let other allocators have what torch's own keeps for later; on the host there is one only."""
    if device_type != "cpu":
        torch.get_device_module(device_type).empty_cache()
