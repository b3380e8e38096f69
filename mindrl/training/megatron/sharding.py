"""Who holds which part of a model that Megatron-core runs. Imports no torch."""

from collections.abc import Mapping
from functools import partial

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import (
    EMBEDDING,
    HEAD,
    NORM,
    VALUE_HEAD,
    DType,
    Head,
)
from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, ShardingTable, padded_rows, whole
from mindrl.models.sharding import LazyTables, Sharding
from mindrl.training.megatron.sharding_attention import attention_table
from mindrl.training.megatron.sharding_feed_forward import (
    ExpertStorage,
    experts_table,
    feed_forward_table,
)


def padded_vocab_size(model: ModelDescription, tp: int) -> int:
    """Return the rows of the vocabulary: rounded up to a multiple of tp."""
    return -(-model.vocab_size // tp) * tp


def megatron_sharding(
    model: ModelDescription,
    layout: TrainLayout,
    *,
    dtype: DType,
    experts: ExpertStorage = "sequential",
    head: Head = "vocabulary",
) -> Sharding:
    """Return who holds what.

    Local names are Megatron's, behind the chunk that they belong to: `chunk0.decoder...`.
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
    stage, tp_rank = place
    table: dict[str, LocalTensor] = {}
    chunks = layout.chunks(model.num_hidden_layers)
    for chunk in range(layout.vpp):
        at = chunk * layout.pp + stage
        for position, index in enumerate(chunks[at]):
            local = f"chunk{chunk}.decoder.layers.{position}."
            table |= _layer(model, index, local, layout.tp, tp_rank)
        ends = _ends(model, layout, head, (at, tp_rank))
        table |= {f"chunk{chunk}.{name}": entry for name, entry in ends.items()}
    return table


def _layer(model: ModelDescription, index: int, local: str, tp: int, tp_rank: int) -> ShardingTable:
    layer, hidden = f"model.layers.{index}.", (model.hidden_size,)
    return {
        f"{local}input_layernorm.weight": whole(f"{layer}input_layernorm.weight", hidden),
        **attention_table(model, local, layer, tp=tp, tp_rank=tp_rank),
        f"{local}pre_mlp_layernorm.weight": whole(
            f"{layer}post_attention_layernorm.weight", hidden
        ),
        **feed_forward_table(model, index, local, layer, tp=tp, tp_rank=tp_rank),
    }


def _ends(
    model: ModelDescription, layout: TrainLayout, head: Head, place: tuple[int, int]
) -> ShardingTable:
    """Return what a chunk holds besides layers: the embedding, the last norm, the head."""
    at, tp_rank = place
    table: dict[str, LocalTensor] = {}
    rows, last = padded_vocab_size(model, layout.tp) // layout.tp, layout.pp * layout.vpp - 1
    shape = (model.vocab_size, model.hidden_size)
    if at == 0:
        table["embedding.word_embeddings.weight"] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    if at == last:
        table["decoder.final_layernorm.weight"] = whole(NORM, (model.hidden_size,))
        if head == "value":
            table["output_layer.weight"] = whole(VALUE_HEAD, (1, model.hidden_size))
        # A tied head is the embedding itself, or its copy where that is in another chunk.
        elif not model.tie_word_embeddings:
            table["output_layer.weight"] = padded_rows(HEAD, shape, rows, tp_rank)
        elif at > 0:
            table["output_layer.weight"] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    return table


def _experts(
    model: ModelDescription, layout: TrainLayout, storage: ExpertStorage, place: Mapping[str, int]
) -> ShardingTable:
    assert model.moe is not None
    table: dict[str, LocalTensor] = {}
    chunks = layout.chunks(model.num_hidden_layers)
    parts = ((layout.ep, place["ep"]), (layout.etp, place["etp"]))
    for chunk in range(layout.vpp):
        for position, index in enumerate(chunks[chunk * layout.pp + place["pp"]]):
            if index not in model.moe.dense_layers:
                local, layer = f"chunk{chunk}.decoder.layers.{position}.", f"model.layers.{index}."
                table |= experts_table(model, local, layer, storage, parts)
    return table
