"""Who holds which part of a model that vLLM runs; local names are vLLM's. Imports no torch."""

from functools import partial

from mindrl.layouts.layout import RolloutLayout
from mindrl.models.decoder import (
    ELEMENT_BYTES,
    EMBEDDING,
    HEAD,
    NORM,
    DType,
)
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.placement import LocalTensor, ShardingTable, padded_rows, part_of, whole
from mindrl.models.sharding import LazyTables, Sharding
from mindrl.rollout.vllm.sharding_layers import attention_table, experts_table, feed_forward_table

_VOCABULARY_MULTIPLE = 64


def padded_vocab_size(model: ModelDescription) -> int:
    """Return the rows of the vocabulary: rounded up to a multiple of 64, whatever tp is."""
    return -(-model.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def vllm_sharding(model: ModelDescription, layout: RolloutLayout, *, dtype: DType) -> Sharding:
    """Return who holds what."""
    tables, twins, held_by = LazyTables(), {}, []
    for rank in range(layout.world_size):
        stage, tp_rank = layout.stage_of(rank), layout.tensor_rank_of(rank)
        names = [f"stage {stage}, tensor {tp_rank}"]
        tables.add(names[0], partial(_dense, model, layout, stage, tp_rank))
        twins[names[0]] = f"stage {stage}, tensor 0"
        if model.moe:
            part = layout.expert_rank_of(rank) if layout.ep > 1 else tp_rank
            names.append(f"stage {stage}, experts {part}")
            tables.add(names[1], partial(_experts, model, layout, stage, part))
            twins[names[1]] = (
                f"stage {stage}, experts {_first_with_as_many(model.moe, layout, part)}"
            )
        held_by.append(tuple(names))
    return Sharding(shards=tables, held_by=tuple(held_by), dtype=dtype, twins=twins)


def kv_bytes_per_token(model: ModelDescription, layout: RolloutLayout, dtype: DType) -> int:
    """Return the bytes that a token takes in a rank's KV cache, on the stage with most layers."""
    if model.mla:
        width = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    else:
        width = 2 * max(1, model.num_key_value_heads // layout.tp) * model.head_dim
    layers = max(len(stage) for stage in layout.chunks(model.num_hidden_layers))
    return layers * width * ELEMENT_BYTES[dtype]


def _first_with_as_many(moe: MoeDescription, layout: RolloutLayout, part: int) -> int:
    """Return the first expert-parallel rank with as many experts: the first may have one more."""
    with_one_more = moe.num_experts % layout.ep
    return with_one_more if part >= with_one_more else 0


def _dense(
    model: ModelDescription, layout: RolloutLayout, stage: int, tp_rank: int
) -> ShardingTable:
    table: dict[str, LocalTensor] = {}
    hidden, tp, first, last = model.hidden_size, layout.tp, stage == 0, stage == layout.pp - 1
    shape, rows = (model.vocab_size, hidden), padded_vocab_size(model) // tp
    if first or (last and model.tie_word_embeddings):
        table[EMBEDDING] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        layer = f"model.layers.{index}."
        table |= attention_table(model, layer, tp=tp, tp_rank=tp_rank)
        table |= feed_forward_table(model, index, layer, tp=tp, tp_rank=tp_rank)
        for name in ("input_layernorm", "post_attention_layernorm"):
            table[f"{layer}{name}.weight"] = whole(f"{layer}{name}.weight", (hidden,))
    if last:
        table[NORM] = whole(NORM, (hidden,))
        if not model.tie_word_embeddings:
            table[HEAD] = padded_rows(HEAD, shape, rows, tp_rank)
    return table


def _experts(
    model: ModelDescription, layout: RolloutLayout, stage: int, part: int
) -> ShardingTable:
    moe = model.moe
    assert moe is not None
    if layout.ep > 1:
        experts, bounds = _dealt_experts(moe, layout.ep, part), (0, moe.intermediate_size)
    else:
        experts, bounds = range(moe.num_experts), part_of(moe.intermediate_size, layout.tp, part)
    table: dict[str, LocalTensor] = {}
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        if index not in moe.dense_layers:
            table |= experts_table(model, f"model.layers.{index}.", experts, bounds)
    return table


def _dealt_experts(moe: MoeDescription, ep: int, ep_rank: int) -> range:
    """Return the experts of a rank: the first ranks get what is left over."""
    each, left = divmod(moe.num_experts, ep)
    start = ep_rank * each + min(ep_rank, left)
    return range(start, start + each + (ep_rank < left))
