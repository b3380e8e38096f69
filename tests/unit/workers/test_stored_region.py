"""Regions whose copies run beside the computation, on a device that does all as late as it may.

Regions whose copies run at once are in tests/distributed/test_training.py.
"""

from threading import Thread

import torch
from late_device import LateDevice
from torch import Tensor

from mindrl.platform.host_arena import HostArena
from mindrl.workers.device_regions import StoredRegion


def on_a_late_device(*tensors: Tensor) -> tuple[StoredRegion, LateDevice]:
    region, device = StoredRegion(tensors, HostArena(4096, device_type="cpu"), "cpu"), LateDevice()
    region.copies.device, region.copies.stream = device, device.Stream()
    return region, device


def test_a_storage_that_leaves_ahead_of_its_region_is_copied_once_even_if_it_is_on_its_way() -> (
    None
):
    first, second = torch.arange(4.0), torch.ones(2)
    region, _ = on_a_late_device(first, second)
    region.offload_storage_of(first)
    assert len(region.copies.pending) == 1
    assert region.device_bytes() == 24  # the copy is not done: the storage is still there
    assert region.offload() == 24
    assert region.device_bytes() == 0
    assert region.onload() == 24
    assert first.tolist() == [0, 1, 2, 3]


def test_what_an_update_computes_is_in_the_copy_each_time_and_comes_back() -> None:
    weights = torch.zeros(3)
    region, device = on_a_late_device(weights)
    for value in (1.0, 2.0):
        device.compute(weights, value)
        region.changed()
        assert region.offload() == 12
        on_host = region.host_copy(weights).tolist()
        assert on_host == [value] * 3
        assert region.onload() == 12
        assert weights.tolist() == [value] * 3
    assert region.offload() == 0, "nothing has changed since"


def test_a_storage_on_its_way_out_that_is_called_back_stays() -> None:
    """As where a reshard fails after the first weights have left."""
    first, second = torch.arange(4.0), torch.ones(2)
    region, _ = on_a_late_device(first, second)
    region.offload_storage_of(first)
    region.onload()
    assert region.device_bytes() == 24
    assert first.tolist() == [0, 1, 2, 3]


def test_a_storage_whose_place_lies_in_several_blocks_comes_back_to_the_bit() -> None:
    # Blocks of 2048, 1024 and 512 bytes: the second storage lies in all three.
    arena = HostArena(3584, device_type="cpu")
    first, second = torch.randn(300), torch.randn(480)
    head, tail = second[:100], second[100:].view(20, 19)
    kept = [tensor.clone() for tensor in (first, second)]
    region = StoredRegion([first, second], arena, "cpu")
    assert region.offload() == 4 * 780
    assert (region.device_bytes(), arena.beyond) == (0, 0)
    # As another model takes its first weights: from the host, while these are away.
    assert torch.equal(region.host_copy(head), kept[1][:100])
    assert torch.equal(region.host_copy(tail), kept[1][100:].view(20, 19))
    region.onload()
    assert torch.equal(first, kept[0])
    assert torch.equal(second, kept[1])


def test_a_copy_that_is_being_read_stays_until_it_is_let_go_and_the_wait_is_told() -> None:
    weights = torch.zeros(3)
    region = StoredRegion([weights], HostArena(512, device_type="cpu"), "cpu")
    region.offload()
    region.hold()
    on_host = region.host_copy(weights)
    region.onload()
    weights.fill_(1.0)
    region.changed()
    leaves = Thread(target=region.offload)
    leaves.start()
    leaves.join(timeout=0.2)
    assert leaves.is_alive()
    assert on_host.tolist() == [0, 0, 0]
    region.let_go()
    leaves.join(timeout=60)
    assert on_host.tolist() == [1, 1, 1]
    assert region.flush_waited() > 0.1
    assert region.flush_waited() == 0
