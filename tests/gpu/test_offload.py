"""Regions on a CUDA device leave it by the allocator's own account, and come back to the bit."""

import pytest
import torch

from mindrl.platform.device_memory import device_account
from mindrl.platform.host_arena import HostArena
from mindrl.workers.device_regions import StoredRegion

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 2**20


def region_of(*tensors: torch.Tensor) -> StoredRegion:
    size = sum(tensor.nbytes for tensor in tensors) + 4096
    return StoredRegion(tensors, HostArena(size, device_type="cuda"), "cuda")


def test_a_released_region_is_gone_by_the_allocators_account_and_comes_back_to_the_bit() -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(size * MIB // 4, device="cuda") for size in (64, 256, 1)]
    expected = [tensor.cpu() for tensor in tensors]
    before = device_account("cuda")
    region = region_of(*tensors)
    assert region.offload() == 321 * MIB
    after = device_account("cuda")
    assert before is not None
    assert after is not None
    assert before.allocated - after.allocated == 321 * MIB
    assert region.onload() == 321 * MIB
    for tensor, wanted in zip(tensors, expected, strict=True):
        assert torch.equal(tensor.cpu(), wanted)


def test_a_region_that_did_not_change_leaves_without_a_copy() -> None:
    tensor = torch.randn(64 * MIB // 4, device="cuda")
    region = region_of(tensor)
    region.offload()
    region.onload()
    assert region.offload() == 0
    region.onload()
    tensor += 1
    region.changed()
    assert region.offload() == 64 * MIB


def test_a_storage_that_leaves_ahead_of_its_region_is_copied_once() -> None:
    tensors = [torch.randn(size * MIB // 4, device="cuda") for size in (64, 8)]
    region = region_of(*tensors)
    region.offload_storage_of(tensors[0])
    assert region.offload() == 72 * MIB


def test_what_the_device_still_computes_is_in_the_copy() -> None:
    tensor = torch.zeros(256 * MIB // 4, device="cuda")
    region = region_of(tensor)
    for _ in range(50):
        tensor += 1
    region.offload()
    region.onload()
    assert tensor.min().item() == tensor.max().item() == 50


def test_two_hundred_swaps_leave_the_device_as_it_was() -> None:
    tensor = torch.randn(32 * MIB // 4, device="cuda")
    region = region_of(tensor)
    region.offload()
    region.onload()
    before = device_account("cuda")
    for _ in range(200):
        region.changed()
        region.offload()
        region.onload()
    after = device_account("cuda")
    assert before is not None
    assert after is not None
    assert after.allocated == before.allocated
