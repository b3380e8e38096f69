"""Which rank holds which part of a model of the PyTorch-native engine: DTensors cut by FSDP2.

Local names are the logical ones. Only the routed experts of a layer are in two stacks:
`mlp.experts.gate_up`, where each expert has its gate rows and then its up rows, and
`mlp.experts.down`. `table.py` defines what tensor parallelism cuts; with fewer key-value heads than
ranks, each rank has the head of its query heads. A tied head in another chunk than the embedding is
a copy of it, `lm_head.weight`.

FSDP2 then cuts the first dimension of a tensor-parallel rank's part, as `torch.chunk` does: each
rank gets the same number of rows, rounded up, so the last ranks get fewer, or none and then lack
the tensor; but all allocate the memory of the first. Experts are not split: each rank gets whole
ones. Imports no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import AdapterShardings, LowRank, first_factors_of
from mindrl.models.decoder import (
    DType,
    Head,
    padded_vocab_size,
)
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.feed_forward import stacked_experts
from mindrl.models.placement import (
    Bounds,
    Box,
    LocalTensor,
    Placement,
    Shape,
    ShardingTable,
    part_of,
)
from mindrl.models.sharding import LazyTables, Sharding
from mindrl.training.archon.table import Cut, TensorRow, factor_rows, rows_by_chunk


class _Part(NamedTuple):
    """One of several equal parts."""

    parts: int
    at: int


def archon_sharding(
    model: ModelDescription,
    layout: TrainLayout,
    *,
    dtype: DType = "float32",
    fsdp_size: int | None = None,
    head: Head = "vocabulary",
) -> Sharding:
    """Return the sharding: each rank holds one dense shard, and one of routed experts if any.

    Of the ranks that differ only in `dp` and `cp`, `fsdp_size` neighbours share the rows of all
    tensors but the experts; None shares them over all. Ranks that differ only in the `dp` of the
    expert grid share the experts.
    """
    tower = model.vision
    found = _sharding(model, layout, rows_by_chunk(model, layout, head), fsdp_size, model.moe)
    frozen = tower.tower if tower and tower.is_frozen else None
    return replace(found, dtype=dtype, frozen=frozen)


def archon_factors(
    model: ModelDescription,
    layout: TrainLayout,
    low_rank: LowRank,
    *,
    base: Sharding,
    fsdp_size: int | None = None,
) -> AdapterShardings:
    """Return the shardings of adapters on a model of sharding `base`; no expert may have any."""
    rows = factor_rows(rows_by_chunk(model, layout, "vocabulary"), model, low_rank)
    trained = replace(_sharding(model, layout, rows, fsdp_size, None), dtype=base.dtype)
    if (fsdp_size or layout.dp * layout.cp) == 1:
        return AdapterShardings(trained)
    return AdapterShardings(trained, first_factors_of(base, model, low_rank))


def _sharding(
    model: ModelDescription,
    layout: TrainLayout,
    by_chunk: Sequence[Mapping[str, TensorRow]],
    fsdp_size: int | None,
    moe: MoeDescription | None,
) -> Sharding:
    """Return the float32 sharding of the tensors of each chunk, and of experts if there are any."""
    shards = fsdp_size or layout.dp * layout.cp
    places = layout.dense_order.places_in_groups(("dp", "cp"))
    alike = _first_equal_shards(_row_counts(model, layout.tp, by_chunk), shards)
    experts = _first_equal_shards({moe.num_experts // layout.ep}, layout.expert_dp) if moe else []
    tables, twins, padded_to, held_by = LazyTables(), {}, {}, []
    for rank, (at, _) in enumerate(places):
        dense = layout.dense_order.coordinates[rank]
        stage, tensor, shard = dense["pp"], dense["tp"], at % shards
        held = [by_chunk[chunk] for chunk in layout.chunks_of(stage)]
        cut = _Part(layout.tp, tensor), _Part(shards, shard)
        names = [f"stage {stage}, tensor {tensor}, shard {shard}"]
        tables.add(names[0], partial(_dense, model, held, cut))
        twins[names[0]] = f"stage {stage}, tensor 0, shard {alike[shard]}"
        padded_to[names[0]] = f"stage {stage}, tensor 0, shard 0"
        if moe:
            place = layout.experts_order.coordinates[rank]
            assert place["pp"] == stage, "the stages of both grids must agree"
            names.append(_experts_name(place))
            tables.add(names[1], partial(_experts, model, layout, place))
            first = {"pp": stage, "ep": 0, "etp": 0, "dp": 0}
            twins[names[1]] = _experts_name({**first, "dp": experts[place["dp"]]})
            padded_to[names[1]] = _experts_name(first)
        held_by.append(tuple(names))
    return Sharding(
        shards=tables,
        held_by=tuple(held_by),
        dtype="float32",
        twins=twins,
        padded_to=padded_to,
    )


def _dense(
    model: ModelDescription, held: Sequence[Mapping[str, TensorRow]], cut: tuple[_Part, _Part]
) -> ShardingTable:
    """Return the table of some chunks for one tensor-parallel rank and one shard of its part."""
    table: dict[str, LocalTensor] = {}
    # Layers are alike: compute each shape once.
    held_of = cache(partial(_held, model, cut))
    for tensors in held:
        for local, row in tensors.items():
            if (found := held_of(row.shape, row.cut)) is not None:
                shape, boxes = found
                placements = tuple(Placement(row.tensor, *each) for each in boxes)
                table[local] = LocalTensor(shape=shape, placements=placements)
    return table


def _of_tensor_rank(
    model: ModelDescription, shape: Shape, cut: Cut, tensor: _Part
) -> tuple[list[Bounds], list[Bounds]]:
    """Return a tensor-parallel rank's runs of rows, and its bounds along the other dimensions.

    Vocabulary padding may exceed the last row.
    """
    rows, *others = [(0, size) for size in shape]
    runs = [rows]
    if tensor.parts == 1:
        return runs, others
    match cut:
        case "vocabulary":
            runs = [part_of(padded_vocab_size(model, tensor.parts), *tensor)]
        case "key-value heads":
            # With fewer heads than ranks, neighbours share one.
            heads = min(tensor.parts, model.num_key_value_heads)
            runs = [part_of(shape[0], heads, tensor.at * heads // tensor.parts)]
        case "queries, keys, values":
            assert model.delta is not None
            counts = model.delta.mixed_rows
            starts = accumulate(counts, initial=0)
            runs = [
                (start + first, start + last)
                for start, (first, last) in zip(
                    starts, (part_of(count, *tensor) for count in counts), strict=False
                )
            ]
        case 0:
            runs = [part_of(shape[0], *tensor)]
        case int(dim):
            others[dim - 1] = part_of(shape[dim], *tensor)
    return runs, others


def _chunk(bounds: Bounds, shard: _Part) -> Bounds:
    """Return a shard's range of rows: the same number for each, rounded up, or what remains."""
    first, last = bounds
    each = -(-(last - first) // shard.parts)
    return min(first + shard.at * each, last), min(first + (shard.at + 1) * each, last)


def _held(
    model: ModelDescription, cut: tuple[_Part, _Part], shape: Shape, how: Cut
) -> tuple[Shape, list[tuple[Box, Box]]] | None:
    """Return a tensor's local shape, and the boxes without padding: in the tensor and here.

    None if this shard has none of it; padding follows the tensor's last row.
    """
    tensor, shard = cut
    runs, others = _of_tensor_rank(model, shape, how, tensor)
    start, stop = _chunk((0, sum(last - first for first, last in runs)), shard)
    if start == stop:
        return None
    tail, boxes, before = tuple((0, last - first) for first, last in others), [], 0
    for first, last in runs:
        # Place of row 0 of the tensor in the shard, as if its rows before this run were there.
        origin = before - start - first
        low, high = max(first, -origin), min(last, stop - start - origin, shape[0])
        if low < high:
            boxes.append((((low, high), *others), ((low + origin, high + origin), *tail)))
        before += last - first
    return (stop - start, *(size for _, size in tail)), boxes


def _experts(
    model: ModelDescription, layout: TrainLayout, place: Mapping[str, int]
) -> ShardingTable:
    """Return the table of routed experts: the same ones in every layer."""
    moe = model.moe
    assert moe is not None
    of_ep = part_of(moe.num_experts, layout.ep, place["ep"])
    experts = range(*_chunk(of_ep, _Part(layout.expert_dp, place["dp"])))
    bounds = part_of(moe.intermediate_size, layout.etp, place["etp"])
    chunks = layout.chunks(model.num_hidden_layers)
    layers = [index for chunk in layout.chunks_of(place["pp"]) for index in chunks[chunk]]
    table: dict[str, LocalTensor] = {}
    for index in layers if experts else []:
        if index not in moe.dense_layers:
            layer = f"model.layers.{index}."
            stacks = stacked_experts(model, layer, experts, bounds, transposed=False)
            here = f"{layer}mlp.experts."
            table |= zip((f"{here}gate_up", f"{here}down"), stacks, strict=True)
    return table


def _experts_name(place: Mapping[str, int]) -> str:
    return (
        f"stage {place['pp']}, expert {place['ep']}, expert tensor {place['etp']}, "
        f"expert shard {place['dp']}"
    )


def _row_counts(
    model: ModelDescription, tp: int, by_chunk: Sequence[Mapping[str, TensorRow]]
) -> set[int]:
    """Return the numbers of rows that tensors of a tensor-parallel rank have."""
    first = _Part(tp, 0)
    rows = {each for chunk in by_chunk for each in chunk.values()}
    parts = (_of_tensor_rank(model, each.shape, each.cut, first)[0] for each in rows)
    return {sum(last - first for first, last in runs) for runs in parts}


def _first_equal_shards(counts: set[int], shards: int) -> list[int]:
    """Return for each shard the first shard with equally many rows of every tensor."""

    def sizes(index: int) -> Iterator[int]:
        for count in counts:
            start, stop = _chunk((0, count), _Part(shards, index))
            yield stop - start

    found = [tuple(sizes(index)) for index in range(shards)]
    return [found.index(each) for each in found]
