"""Bytes of a rank's weights, gradients and optimizer, and what it borrows, as FSDP2 has them.

FSDP2 gives the weights of every rank that shares a tensor the memory of the first one's rows.
Gradients, both moments and the weights themselves are float32 and have a storage for each tensor.
Pure Python.
"""

from collections import Counter
from math import prod

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import ELEMENT_BYTES, DType, Head, layer_of
from mindrl.models.description import ModelDescription
from mindrl.models.placement import ShardingTable
from mindrl.models.sharding import Sharding
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.trained_bytes import TrainedBytes


def archon_trained_bytes(sharding: Sharding) -> tuple[TrainedBytes, ...]:
    """Return what each rank allocates to train what it holds."""
    assert sharding.dtype == "float32", "what is bfloat16 is borrowed, and never kept"
    return tuple(
        TrainedBytes(weights=stored, gradients=used, optimizer=2 * used)
        for stored, used in zip(sharding.held_bytes(), sharding.used_bytes(), strict=True)
    )


def archon_borrowed_bytes(
    model: ModelDescription, layout: TrainLayout, dtype: DType, *, head: Head, learns: bool
) -> int:
    """Estimate the bytes of whole weights and gradients.

    Whole is what a tensor-parallel rank has without FSDP, in the type of the products. At a time
    there are the weights outside the layers and of two layers: one is computed, the next one comes;
    who learns has gradients besides, of one layer at a time. In a pipeline the weights of all
    layers of a stage stay for the pass, and their gradients, float32, for the step. On their way to
    the ranks that keep them gradients of one unit are there once more, in float32.
    """
    sharding = archon_sharding(model, layout, fsdp_size=1, head=head)
    firsts: dict[int, int] = {}
    for rank, place in enumerate(layout.dense_order.coordinates):
        firsts.setdefault(place["pp"], rank)
    stages = [_unit_sizes(model, layout, sharding.table(rank)) for rank in firsts.values()]
    return max(_of_stage(units, layout, dtype, learns=learns) for units in stages)


def _of_stage(units: Counter[str], layout: TrainLayout, dtype: DType, *, learns: bool) -> int:
    root, size, wide = units.pop("", 0), ELEMENT_BYTES[dtype], ELEMENT_BYTES["float32"]
    layers = sorted(units.values(), reverse=True)
    travelling = max(root, *layers)
    if layout.pp > 1:
        whole = root + sum(layers)
        return whole * size + learns * (whole + travelling) * wide
    gradients = (root + layers[0]) * size + travelling * wide
    return (root + sum(layers[:2])) * size + learns * gradients


def _unit_sizes(model: ModelDescription, layout: TrainLayout, table: ShardingTable) -> Counter[str]:
    """Count the elements of each layer, its experts whole, and under no name of all else."""
    sizes: Counter[str] = Counter()
    for name, entry in table.items():
        layer = layer_of(name)
        rows, *others = entry.shape
        if model.moe and ".mlp.experts." in name:
            rows = model.moe.num_experts // layout.ep
        sizes["" if layer is None else str(layer)] += rows * prod(others)
    return sizes
