"""What the tests of memory that leaves a simulated device call in its process."""

import time
from dataclasses import dataclass
from threading import Thread

import torch
from torch import Tensor

from mindrl.errors import DeviceMemoryError
from mindrl.memory.schedule import Region
from mindrl.platform.copies import Copies
from mindrl.platform.device_memory import device_account, give_back_unused
from mindrl.platform.host_arena import HostArena
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import StoredRegion

MIB = 1 << 20
SIZES_MIB = (12, 10, 16)
TURNS = (Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """What was seen of a region that left three times while it was still computed."""

    values: list[Tensor]
    copied_bytes: list[int]
    stayed_bytes: int
    """What torch's allocator had given out while the region was away, for the last time."""
    pinned: bool


def swaps() -> Swapped:
    """Compute, leave at once, come back at once, compute."""
    torch.manual_seed(1)
    tensors = [torch.randn(size * MIB // 4).to("npu") for size in SIZES_MIB]
    host = HostArena(sum(SIZES_MIB) * MIB, device_type="npu")
    pinned = all(block.is_pinned() for block in host.free)
    region = StoredRegion(tensors, host, "npu")
    copied = []
    for _ in range(3):
        # The one first that came last.
        for tensor in reversed(tensors):
            tensor.mul_(1.5)
            tensor.add_(1.0)
        region.changed()
        region.offload_storage_of(tensors[1])
        # As a reshard, which takes memory while weights leave: not that which still is copied.
        torch.full((10 * MIB // 4,), -2.0, device="npu")
        copied.append(region.offload())
        # Whatever takes the memory now must not reach the host's copy.
        torch.full((12 * MIB // 4,), -1.0, device="npu")
        account = device_account("npu")
        assert account is not None
        region.onload()
    values = [tensor.cpu() for tensor in tensors]
    return Swapped(
        values=values, copied_bytes=copied, stayed_bytes=account.allocated, pinned=pinned
    )


def back_before_it_left() -> list[Tensor]:
    """Bring a region back while parts of it still leave, as after a reshard that failed."""
    torch.manual_seed(1)
    tensors = [torch.randn(size * MIB // 4).to("npu") for size in SIZES_MIB]
    region = StoredRegion(tensors, HostArena(sum(SIZES_MIB) * MIB, device_type="npu"), "npu")
    for tensor in tensors[:2]:
        region.offload_storage_of(tensor)
    region.onload()
    return [tensor.add(1.0).cpu() for tensor in tensors]


def read_while_it_leaves_again() -> tuple[float, float]:
    """Read the host's copy slowly while its region changes and leaves; returns its bounds."""
    tensor = torch.full((MIB,), 1.0, device="npu")
    region = StoredRegion([tensor], HostArena(4 * MIB, device_type="npu"), "npu")
    region.offload()
    copy = region.host_copy(tensor)
    region.hold()
    region.onload()
    tensor.add_(1.0)
    region.changed()
    read: list[float] = []

    def checkpoint() -> None:
        time.sleep(0.5)
        read.extend((float(copy.min()), float(copy.max())))
        region.let_go()

    reader = Thread(target=checkpoint)
    reader.start()
    region.offload()
    reader.join()
    return read[0], read[1]


def copies_of_what_is_computed() -> int:
    """Copy 20 blocks that were just computed to the host; returns how many arrived wrong."""
    target = torch.empty(MIB, dtype=torch.float32, pin_memory=True)
    copies, wrong = Copies("npu"), 0
    for number in range(20):
        source = torch.full((MIB,), float(number), device="npu").add_(0.5)
        copies.start([(target, source)], lambda: None)
        copies.finish()
        wrong += not bool((target == number + 0.5).all())
    return wrong


def turns(block_taken: bool) -> tuple[str, list[bool]]:
    """Let two regions take turns on a device, of which somebody may have taken a block.

    Returns what a DeviceMemoryError said of the first, and whether each came whole.
    """
    ledger = DeviceLedger(None)
    for name in TURNS:
        ledger.add(name, region_of_zeros())
        ledger.offload(name)
        give_back_unused("npu")
    # torch_npu takes 2 MiB of the device for it.
    taken = [torch.zeros(1, device="npu")] * block_taken
    said, whole = "", []
    for name in TURNS:
        try:
            ledger.onload(name)
        except DeviceMemoryError as error:
            said = str(error)
        whole.append(ledger.is_complete(name))
        ledger.offload(name)
        give_back_unused("npu")
        taken.clear()
    return said, whole


def region_of_zeros() -> StoredRegion:
    tensors = [torch.zeros(size * MIB // 4, device="npu") for size in SIZES_MIB]
    return StoredRegion(tensors, HostArena(sum(SIZES_MIB) * MIB, device_type="npu"), "npu")
