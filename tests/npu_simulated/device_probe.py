"""Functions that tests of one simulated device call in its process."""

import ctypes
from dataclasses import dataclass

import torch

from mindrl.platform.device import PLATFORMS, choose_platform
from mindrl.platform.device_memory import DeviceAccount, device_account, give_back_unused

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What a process finds."""

    chosen: str
    """What `rl_config.device: auto` takes."""
    local_devices: int
    count: int
    """By torch."""
    current: int
    indexes: dict[str, int]
    """What torch knows each visible device by."""
    beyond: str
    """What is said of one device more."""


def device_facts() -> DeviceFacts:
    platform, count = PLATFORMS["npu"], torch.npu.device_count()
    names = platform.visible_devices() or [str(index) for index in range(count)]
    try:
        torch.npu.set_device(count)
    except RuntimeError as error:
        beyond = str(error)
    chosen = choose_platform("auto")
    return DeviceFacts(
        chosen=chosen.kind,
        local_devices=chosen.local_devices(),
        count=count,
        current=torch.npu.current_device(),
        indexes={name: platform.device_index(name) for name in names},
        beyond=beyond,
    )


def accounts() -> list[DeviceAccount | None]:
    """Account for an empty device, 64 MiB and a pool's 16 on it, and the release of the first."""
    found = [device_account("npu")]
    block = torch.zeros(64 * MIB, dtype=torch.uint8, device="npu")
    with torch.npu.use_mem_pool(torch.npu.MemPool()):
        pooled = torch.zeros(16 * MIB, dtype=torch.uint8, device="npu")
    found.append(device_account("npu"))
    block.untyped_storage().resize_(0)
    found.append(device_account("npu"))
    give_back_unused("npu")
    found.append(device_account("npu"))
    del pooled
    return found


def read_as_host_memory() -> None:
    """Follow a device pointer as if it were the host's."""
    values = torch.ones(4, device="npu")
    torch.npu.synchronize()
    ctypes.string_at(values.data_ptr(), 4)
