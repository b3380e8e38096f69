"""Who holds which part of a model that Megatron-core runs. Imports no torch."""

from collections.abc import Iterator, Mapping
from functools import partial

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import EMBEDDING, HEAD, NORM, VALUE_HEAD, DType, Head
from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, ShardingTable, padded_rows, whole
from mindrl.models.sharding import LazyTables, Sharding
from mindrl.training.megatron.sharding_layers import ExpertStorage, experts_table, layer_table


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
    """Return who holds what: each rank a shard of all but routed experts, then one of those.

    Local names are Megatron's, behind the chunk that they belong to: `chunk0.decoder...`. A table
    has those of a chunk in the order in which Megatron registers its parameters.
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
    table: dict[str, LocalTensor] = {}
    shape, rows = (model.vocab_size, model.hidden_size), padded_vocab_size(model, tp) // tp
    if stage == 0:
        name = "chunk0.embedding.word_embeddings.weight"
        table[name] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    for index, local, layer in _layers(model, layout, stage):
        table |= layer_table(model, index, local, layer, (tp, tp_rank))
    if stage == layout.pp - 1:
        last = f"chunk{layout.vpp - 1}."
        table[f"{last}decoder.final_layernorm.weight"] = whole(NORM, (model.hidden_size,))
        name = f"{last}output_layer.weight"
        if head == "value":
            table[name] = whole(VALUE_HEAD, (1, model.hidden_size))
        # A tied head is the embedding itself, or its copy where that is in another chunk.
        elif not model.tie_word_embeddings:
            table[name] = padded_rows(HEAD, shape, rows, tp_rank)
        elif layout.pp * layout.vpp > 1:
            table[name] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    return table


def _experts(
    model: ModelDescription, layout: TrainLayout, storage: ExpertStorage, place: Mapping[str, int]
) -> ShardingTable:
    assert model.moe is not None
    table: dict[str, LocalTensor] = {}
    parts = ((layout.ep, place["ep"]), (layout.etp, place["etp"]))
    for index, local, layer in _layers(model, layout, place["pp"]):
        if index not in model.moe.dense_layers:
            table |= experts_table(model, local, layer, storage, parts)
    return table


def _layers(
    model: ModelDescription, layout: TrainLayout, stage: int
) -> Iterator[tuple[int, str, str]]:
    """Yield each layer of a stage: its index, the prefix of its local names, of the logical."""
    chunks = layout.chunks(model.num_hidden_layers)
    for chunk in range(layout.vpp):
        for position, index in enumerate(chunks[chunk * layout.pp + stage]):
            yield index, f"chunk{chunk}.decoder.layers.{position}.", f"model.layers.{index}."
