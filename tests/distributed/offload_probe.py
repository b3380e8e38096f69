"""What the tests of the host's copies call in prepared processes."""

import torch
from offload_messages import OffloadFacts
from own_device import device_type

from mindrl.platform.host_arena import HostArena
from mindrl.training.engine import StatePart, TrainingEngine
from mindrl.workers.device_regions import StoredRegion


def swap_out_and_in(model: TrainingEngine) -> int:
    """Take all regions off the device and bring them back; returns the bytes that stayed."""
    regions = regions_of(model)
    for region in regions:
        region.offload()
    stayed = sum(region.device_bytes() for region in regions)
    for region in reversed(regions):
        region.onload()
    return stayed


def regions_of(model: TrainingEngine) -> list[StoredRegion]:
    """Return optimizer, gradients and weights, each with an arena of its own."""
    return [
        StoredRegion(
            list(model.state(part)),
            None if part is StatePart.GRADIENTS else arena(64 << 20),
            device_type(),
        )
        for part in (StatePart.OPTIMIZER, StatePart.GRADIENTS, StatePart.PARAMETERS)
    ]


def arena(nbytes: int) -> HostArena:
    return HostArena(nbytes, device_type=device_type())


def offload_facts() -> OffloadFacts:
    """Move a storage with two views, and a single one, out and in; then unchanged; then dropped."""
    flat = torch.arange(6.0)
    head, tail = flat[:2], flat[2:]
    other = torch.full((3,), 7.0)
    # Two places of 512 bytes each.
    host = arena(1024)
    region = StoredRegion([flat, head, tail, other], host, "cpu")
    out_bytes = region.offload()
    bytes_while_out = flat.untyped_storage().nbytes() + other.untyped_storage().nbytes()
    in_bytes = region.onload()
    tail += 10
    region.changed()
    kept = [tensor.tolist() for tensor in (flat, head, tail, other)]
    shared = tail.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    region.offload_storage_of(head)
    changed_out_bytes = region.offload()
    region.onload()
    clean_out_bytes = region.offload()
    host_copy = region.host_copy(tail).tolist()
    region.onload()
    dropped = StoredRegion([torch.zeros(5)], None, "cpu")
    StoredRegion([torch.zeros(2)], host, "cpu")
    return OffloadFacts(
        out_bytes=out_bytes,
        bytes_while_out=bytes_while_out,
        in_bytes=in_bytes,
        kept=kept,
        share_storage=shared,
        changed_out_bytes=changed_out_bytes,
        clean_out_bytes=clean_out_bytes,
        after_clean=flat.tolist(),
        host_copy=host_copy,
        dropped_bytes=dropped.offload(),
        arena_bytes=host.used,
        beyond_bytes=host.beyond,
    )
