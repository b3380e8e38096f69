"""Regions whose copies run beside the computation, with torch's stand-ins for streams.

Regions whose copies run at once are in tests/distributed/test_training.py.
"""

import torch

from mindrl.platform.host_arena import HostArena
from mindrl.training.offload import StoredRegion


def test_a_storage_that_leaves_ahead_of_its_region_is_copied_once_even_if_it_is_on_its_way() -> (
    None
):
    first, second = torch.arange(4.0), torch.ones(2)
    region = StoredRegion([first, second], HostArena(4096, device_type="cpu"), "cpu")
    region.copies.device, region.copies.stream = torch.cpu, torch.cpu.Stream()
    region.release_storage_of(first)
    assert len(region.copies.pending) == 1
    assert region.device_bytes() == 24  # the copy is not done: the storage is still there
    assert region.release() == 24
    assert region.device_bytes() == 0
    assert region.bring() == 24
    assert first.tolist() == [0, 1, 2, 3]
