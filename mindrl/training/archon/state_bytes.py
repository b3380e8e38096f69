"""Bytes of a rank's weights, gradients and optimizer, and of gathered weights, under FSDP2.

FSDP2 gives every rank that shares a tensor the memory of the first rank's rows. Gradients, both
moments and the weights themselves are float32, with one storage per tensor. Pure Python.
"""

from collections import Counter
from math import prod

from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank
from mindrl.models.decoder import ELEMENT_BYTES, DType, Head, layer_of
from mindrl.models.description import ModelDescription
from mindrl.models.placement import ShardingTable
from mindrl.models.sharding import Sharding
from mindrl.training.archon.sharding import archon_factors, archon_sharding
from mindrl.training.trained_bytes import TrainedBytes


def archon_trained_bytes(sharding: Sharding) -> tuple[TrainedBytes, ...]:
    """Return the bytes that each rank allocates to train its part."""
    assert sharding.dtype == "float32", "bfloat16 weights are borrowed, and not kept"
    return tuple(
        TrainedBytes(weights=stored, gradients=used, optimizer=2 * used)
        for stored, used in zip(sharding.held_bytes(), sharding.learning_bytes(), strict=True)
    )


def archon_borrowed_bytes(
    model: ModelDescription,
    layout: TrainLayout,
    dtype: DType,
    *,
    head: Head,
    learns: bool,
    low_rank: LowRank | None = None,
) -> int:
    """Estimate the peak bytes of gathered weights and gradients, the maximum over stages.

    Sizes are those of a tensor-parallel rank without FSDP, in the dtype of the products unless
    noted. Forward only: the weights outside the layers; a layer's weights twice, as they are copied
    on arrival; and the weights gathered before, which FSDP2 frees next. Learning: a layer's weights
    and gradients, and the next layer's arriving weights; outside the layers, the weights and the
    head's gradient. Float32 gradients of a layer are in flight until the next layer's are. At the
    end come the float32 gradients of everything outside the layers, the rank's own part of them,
    and one gradient not yet freed. In a pipeline the weights of all layers of a stage stay for the
    pass, and their float32 gradients for the step; gradients of one unit exist twice while in
    flight. With adapters only the factors have gradients.
    """
    sharding = archon_sharding(model, layout, fsdp_size=1, head=head)
    firsts: dict[int, int] = {}
    for rank, place in enumerate(layout.dense_order.coordinates):
        firsts.setdefault(place["pp"], rank)
    trained = sharding
    if low_rank is not None:
        trained = archon_factors(model, layout, low_rank, base=sharding, fsdp_size=1).trained
    tables = [(sharding.table(rank), trained.table(rank)) for rank in firsts.values()]
    return max(
        _of_stage(model, {**held, **learning}, learning if learns else {}, layout, dtype)
        for held, learning in tables
    )


def _of_stage(
    model: ModelDescription,
    held: ShardingTable,
    learning: ShardingTable,
    layout: TrainLayout,
    dtype: DType,
) -> int:
    """Return the bytes of a stage that holds `held`, and trains the tensors `learning`."""
    units, gradients = (_unit_sizes(model, layout, table) for table in (held, learning))
    size, wide = ELEMENT_BYTES[dtype], ELEMENT_BYTES["float32"]
    root, root_gradient = units.pop("", 0), gradients.pop("", 0)
    layer, *others = sorted(units.values(), reverse=True)
    layer_gradient = max(gradients.values(), default=0)
    if layout.pp > 1:
        whole = (root + sum(units.values())) * size
        of_gradients = root_gradient + sum(gradients.values())
        return whole + (of_gradients + max(root_gradient, layer_gradient)) * wide
    reading = (root + max([root, *others[:1]]) + 2 * layer) * size
    if not learning:
        return reading
    # The head or the embedding.
    outside = [prod(each.shape) for name, each in learning.items() if layer_of(name) is None]
    matrix = max(outside, default=0)
    weights = root + 2 * layer
    of_layers = (weights + matrix + layer_gradient) * size + layer_gradient * wide
    of_rank = root_gradient // (layout.dp * layout.cp)
    at_end = matrix * size + (root_gradient + of_rank) * wide
    return max(reading, of_layers, at_end, 2 * root * size + layer_gradient * wide)


def _unit_sizes(model: ModelDescription, layout: TrainLayout, table: ShardingTable) -> Counter[str]:
    """Return the elements of each layer, its experts whole; the empty name has all others.

    The layers of a vision tower are among them.
    """
    sizes: Counter[str] = Counter()
    for name, entry in table.items():
        rows, *others = entry.shape
        if model.moe and ".mlp.experts." in name:
            rows = model.moe.num_experts // layout.ep
        sizes[_unit_of(model, name)] += rows * prod(others)
    return sizes


def _unit_of(model: ModelDescription, name: str) -> str:
    """Return the layer of a tensor, of the decoder or of a vision tower; empty if it is in none."""
    vision = model.vision
    if vision is not None and name.startswith(blocks := f"{vision.tower}blocks."):
        return f"tower {name.removeprefix(blocks).partition('.')[0]}"
    layer = layer_of(name)
    return "" if layer is None else str(layer)
