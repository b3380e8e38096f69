"""Which rank holds which part of a Megatron-core model, in the order of its modules.

Grouped-query attention: Megatron fuses QKV interleaved by key-value group (the group's query heads,
its key head, its value head) and cuts the rows evenly, inside a group too if there are more ranks
than groups. Multi-head latent attention (DeepSeek): Megatron's local specification also cuts the
rows of the down projections.

Feed-forward: Megatron fuses gate and up, each cut by rank first. It stores experts separately
(SequentialMLP), separately under other names (TEGroupedMLP), or all of a rank in two transposed
matrices (GroupedMLP). Experts are distributed whole over the expert-parallel ranks and cut by the
expert tensor-parallel size.

`local` and `layer` are prefixes of a layer's local and logical names; `cut` is (tensor-parallel
size, rank in it). Imports no torch.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from mindrl.layouts.layout import TrainLayout
from mindrl.models.attention import (
    key_value_rows,
    latent_part,
    latent_shapes,
    projection_rows,
    query_rows,
)
from mindrl.models.decoder import (
    EMBEDDING,
    HEAD,
    NORM,
    VALUE_HEAD,
    DType,
    Head,
    padded_vocab_size,
)
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import (
    correction_bias,
    expert_prefix,
    gate_and_up,
    stacked_experts,
)
from mindrl.models.placement import (
    Bounds,
    LocalTensor,
    Rows,
    ShardingTable,
    columns,
    padded_rows,
    part_of,
    stack,
    whole,
)
from mindrl.models.sharding import LazyTables, Sharding

ExpertStorage = Literal["sequential", "te_grouped", "grouped"]
"""Megatron's class of expert storage on a rank."""
_LATENT_NAMES = {
    "linear_proj.weight": "o_proj.weight",
    "linear_q_proj.weight": "q_proj.weight",
    "linear_q_down_proj.weight": "q_a_proj.weight",
    "linear_q_up_proj.weight": "q_b_proj.weight",
    "linear_kv_down_proj.weight": "kv_a_proj_with_mqa.weight",
    "linear_kv_up_proj.weight": "kv_b_proj.weight",
    "q_layernorm.weight": "q_a_layernorm.weight",
    "kv_layernorm.weight": "kv_a_layernorm.weight",
}
"""Megatron's names of latent attention tensors, and their logical names."""
_Table = dict[str, LocalTensor]


def megatron_sharding(
    model: ModelDescription,
    layout: TrainLayout,
    *,
    dtype: DType,
    experts: ExpertStorage = "sequential",
    head: Head = "vocabulary",
) -> Sharding:
    """Return the sharding: each rank holds one dense shard, and one of routed experts if any.

    Local names are Megatron's with the chunk as a prefix: `chunk0.decoder...`. A table lists a
    chunk's parameters in the order in which Megatron registers them.
    """
    tables, twins, held_by = LazyTables(), {}, []
    for rank in range(layout.world_size):
        dense = layout.dense_order.coordinates[rank]
        stage, tp_rank = dense["pp"], dense["tp"]
        names = [f"stage {stage}, tensor {tp_rank}"]
        tables.add(names[0], partial(_dense, model, layout, head, (stage, tp_rank)))
        twins[names[0]] = f"stage {stage}, tensor 0"
        if model.moe:
            place = layout.experts_order.coordinates[rank]
            assert place["pp"] == stage, "the stages of both grids must agree"
            names.append(f"stage {stage}, expert {place['ep']}, expert tensor {place['etp']}")
            tables.add(names[1], partial(_experts, model, layout, experts, place))
            twins[names[1]] = f"stage {stage}, expert 0, expert tensor 0"
        held_by.append(tuple(names))
    return Sharding(shards=tables, held_by=tuple(held_by), dtype=dtype, twins=twins)


def _dense(
    model: ModelDescription, layout: TrainLayout, head: Head, place: tuple[int, int]
) -> ShardingTable:
    (stage, tp_rank), tp = place, layout.tp
    table: _Table = {}
    shape, rows = (model.vocab_size, model.hidden_size), padded_vocab_size(model, tp) // tp
    if stage == 0:
        name = "chunk0.embedding.word_embeddings.weight"
        table[name] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    for index, local, layer in _layers(model, layout, stage):
        table |= _layer(model, index, local, layer, (tp, tp_rank))
    if stage == layout.last_stage:
        last = f"chunk{layout.vpp - 1}."
        table[f"{last}decoder.final_layernorm.weight"] = whole(NORM, (model.hidden_size,))
        name = f"{last}output_layer.weight"
        if head == "value":
            table[name] = whole(VALUE_HEAD, (1, model.hidden_size))
        # A tied head is the embedding itself, or a copy if the embedding is in another chunk.
        elif not model.tie_word_embeddings:
            table[name] = padded_rows(HEAD, shape, rows, tp_rank)
        elif layout.pp * layout.vpp > 1:
            table[name] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    return table


def _experts(
    model: ModelDescription, layout: TrainLayout, storage: ExpertStorage, place: Mapping[str, int]
) -> ShardingTable:
    """Return the table of routed experts: the same experts, and parts of them, in every layer.

    `place` has the coordinates `ep`, `etp` and `pp`.
    """
    moe = model.moe
    assert moe is not None
    table: _Table = {}
    experts = range(*part_of(moe.num_experts, layout.ep, place["ep"]))
    bounds = part_of(moe.intermediate_size, layout.etp, place["etp"])
    for index, local, layer in _layers(model, layout, place["pp"]):
        here = f"{local}mlp.experts."
        if index in moe.dense_layers:
            continue
        if storage == "grouped":
            # Megatron stores both parameters in two dimensions and views them in these three.
            matrices = stacked_experts(model, layer, experts, bounds, transposed=True)
            table |= zip((f"{here}weight1", f"{here}weight2"), matrices, strict=True)
            continue
        for position, expert in enumerate(experts):
            for name, entry in _gated(model, "", expert_prefix(layer, expert), bounds).items():
                apart = f"local_experts.{position}.{name}"
                ours = apart if storage == "sequential" else f"{name}{position}"
                table[here + ours] = entry
    return table


def _layers(
    model: ModelDescription, layout: TrainLayout, stage: int
) -> Iterator[tuple[int, str, str]]:
    """Yield each layer of a stage: its index, and the prefixes of its local and logical names."""
    chunks = layout.chunks(model.num_hidden_layers)
    for chunk, at in enumerate(layout.chunks_of(stage)):
        for position, index in enumerate(chunks[at]):
            yield index, f"chunk{chunk}.decoder.layers.{position}.", f"model.layers.{index}."


def _layer(
    model: ModelDescription, index: int, local: str, layer: str, cut: tuple[int, int]
) -> _Table:
    """Return the table of a layer without routed experts."""
    hidden = (model.hidden_size,)
    attention = _latent_attention if model.mla else _attention
    return {
        f"{local}input_layernorm.weight": whole(f"{layer}input_layernorm.weight", hidden),
        **attention(model, f"{local}self_attention.", layer, cut),
        f"{local}pre_mlp_layernorm.weight": whole(
            f"{layer}post_attention_layernorm.weight", hidden
        ),
        **_feed_forward(model, index, f"{local}mlp.", layer, cut),
    }


def _attention(model: ModelDescription, here: str, layer: str, cut: tuple[int, int]) -> _Table:
    hidden, query = model.hidden_size, query_rows(model)
    bounds = part_of(query + 2 * key_value_rows(model), *cut)
    output = columns(f"{layer}self_attn.o_proj.weight", hidden, part_of(query, *cut))
    fused = stack(_interleaved(model, layer, "weight", bounds), tail=(hidden,))
    table = {f"{here}linear_proj.weight": output, f"{here}linear_qkv.weight": fused}
    if model.attention_bias:
        table[f"{here}linear_qkv.bias"] = stack(_interleaved(model, layer, "bias", bounds))
    if model.qk_norm:
        for letter in ("q", "k"):
            name = f"{layer}self_attn.{letter}_norm.weight"
            table[f"{here}{letter}_layernorm.weight"] = whole(name, (model.head_dim,))
    return table


def _interleaved(model: ModelDescription, layer: str, kind: str, bounds: Bounds) -> Iterator[Rows]:
    """Yield the contents of the rows `bounds` of the whole interleaved QKV matrix."""
    head, per_group = model.head_dim, model.heads_per_group
    row = 0
    for group in range(model.num_key_value_heads):
        for letter, rows in (("q", per_group * head), ("k", head), ("v", head)):
            start, stop = max(bounds[0], row), min(bounds[1], row + rows)
            origin = group * rows - row
            if start < stop:
                yield projection_rows(model, layer, letter, kind, (start + origin, stop + origin))
            row += rows


def _latent_attention(
    model: ModelDescription, here: str, layer: str, cut: tuple[int, int]
) -> _Table:
    shapes = latent_shapes(model, layer)
    logical = {ours: f"{layer}self_attn.{theirs}" for ours, theirs in _LATENT_NAMES.items()}
    return {
        f"{here}{ours}": latent_part(name, shapes[name], *cut)
        for ours, name in logical.items()
        if name in shapes
    }


def _feed_forward(
    model: ModelDescription, index: int, here: str, layer: str, cut: tuple[int, int]
) -> _Table:
    moe, there = model.moe, f"{layer}mlp."
    if moe is None or index in moe.dense_layers:
        return _gated(model, here, there, part_of(model.intermediate_size, *cut))
    shape = (moe.num_experts, model.hidden_size)
    table = {f"{here}router.weight": whole(f"{there}gate.weight", shape)}
    if moe.score_correction_bias:
        table[f"{here}router.expert_bias"] = whole(correction_bias(layer), (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, *cut)
        table |= _gated(model, f"{here}shared_experts.", f"{there}shared_experts.", bounds)
    return table


def _gated(model: ModelDescription, local: str, prefix: str, bounds: Bounds) -> _Table:
    hidden = model.hidden_size
    return {
        f"{local}linear_fc1.weight": stack(gate_and_up(model, prefix, bounds), tail=(hidden,)),
        f"{local}linear_fc2.weight": columns(f"{prefix}down_proj.weight", hidden, bounds),
    }
