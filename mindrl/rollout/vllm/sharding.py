"""Sharding of a model in vLLM, under vLLM's local names. Imports no torch.

Local names are the logical names except for fused tensors. Grouped-query attention: vLLM stacks the
query heads of a rank, then its key heads, then its value heads, and replicates key-value heads if
there are more ranks than heads. Multi-head latent attention (DeepSeek): it fuses the down
projections, and every rank has them whole. Gate and up are fused after each is split by rank. All
experts of a rank are stacked in `w13` and `w2`: under tensor parallelism every rank has its part of
each expert, under expert parallelism some experts whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from mindrl.layouts.layout import RolloutLayout
from mindrl.models.attention import (
    latent_part,
    latent_shapes,
    projected_query_rows,
    projection_rows,
    query_rows,
)
from mindrl.models.decoder import EMBEDDING, HEAD, NORM, DType
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.feed_forward import (
    correction_bias,
    gate_and_up,
    shared_gate,
    shared_prefix,
    stacked_experts,
)
from mindrl.models.placement import (
    Bounds,
    LocalTensor,
    Shape,
    columns,
    padded_rows,
    part_of,
    stack,
    whole,
)
from mindrl.models.sharding import LazyTables, Sharding, full_sharding
from mindrl.rollout.vllm.gated_delta import gated_delta_part

_VOCABULARY_MULTIPLE = 64
_FLOAT32_ROUTERS = ("glm4_moe",)
"""Families with the router's weight in float32, next to other weights in bfloat16."""
_Table = dict[str, LocalTensor]


def padded_vocab_size(model: ModelDescription) -> int:
    """Return the rows of the vocabulary, rounded up to a multiple of 64 for any tp."""
    return -(-model.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def vllm_sharding(
    model: ModelDescription, layout: RolloutLayout, *, dtype: DType, int8: bool = False
) -> Sharding:
    """Return which rank holds which tensor; with `int8` the matrices of the layers are rounded.

    For families of unknown sharding each rank lists whole tensors, because vLLM loads them itself.
    """
    if whole_tensors(model):
        ranks = range(layout.world_size)
        return full_sharding(model, world_size=len(ranks), holders=ranks, dtype=dtype)
    tables, twins, held_by = LazyTables(), {}, []
    for rank in range(layout.world_size):
        stage, tp_rank = layout.stage_of(rank), layout.tensor_rank_of(rank)
        names = [f"stage {stage}, tensor {tp_rank}"]
        maker = partial(_dense, model, layout, stage, tp_rank)
        tables.add(names[0], partial(_rounded, maker) if int8 else maker)
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


def whole_tensors(model: ModelDescription) -> Mapping[str, Shape] | None:
    """Return the tensors that vLLM loads itself; None for families of known sharding."""
    other = model.other
    return dict(other.tensors) if other and (other.vision or not other.delta) else None


def layers_of_ranks(model: ModelDescription, layout: RolloutLayout) -> tuple[int, ...]:
    """Return the number of layers on each rank."""
    stages = [len(stage) for stage in layout.chunks(model.num_hidden_layers)]
    return tuple(stages[layout.stage_of(rank)] for rank in range(layout.world_size))


def _first_with_as_many(moe: MoeDescription, layout: RolloutLayout, part: int) -> int:
    """Return the first expert-parallel rank with equally many experts; some have one more."""
    with_one_more = moe.num_experts % layout.ep
    return with_one_more if part >= with_one_more else 0


def _dense(model: ModelDescription, layout: RolloutLayout, stage: int, tp_rank: int) -> _Table:
    table: _Table = {}
    hidden, tp = model.hidden_size, layout.tp
    # vLLM's Qwen3MoeForCausalLM has embedding, last norm and head on every stage.
    is_everywhere = model.model_type == "qwen3_moe"
    first, last = is_everywhere or stage == 0, is_everywhere or stage == layout.pp - 1
    shape, rows = (model.vocab_size, hidden), padded_vocab_size(model) // tp
    if first or (last and model.tie_word_embeddings):
        table[EMBEDDING] = padded_rows(EMBEDDING, shape, rows, tp_rank)
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        layer = f"model.layers.{index}."
        if model.delta and model.is_linear(index):
            table |= gated_delta_part(model.delta, hidden, layer, tp, tp_rank)
        else:
            table |= _attention(model, layer, tp, tp_rank)
        table |= _feed_forward(model, index, layer, tp, tp_rank)
        for name in ("input_layernorm", "post_attention_layernorm"):
            table[f"{layer}{name}.weight"] = whole(f"{layer}{name}.weight", (hidden,))
    if last:
        table[NORM] = whole(NORM, (hidden,))
        if not model.tie_word_embeddings:
            table[HEAD] = padded_rows(HEAD, shape, rows, tp_rank)
    return table


def _rounded(maker: Callable[[], _Table]) -> _Table:
    """Return a table with the matrices of the layers in int8."""
    return {
        name: replace(entry, int8=name.startswith("model.layers.") and len(entry.shape) == 2)
        for name, entry in maker().items()
    }


def _experts(model: ModelDescription, layout: RolloutLayout, stage: int, part: int) -> _Table:
    moe = model.moe
    assert moe is not None
    if layout.ep > 1:
        experts, bounds = _dealt_experts(moe, layout.ep, part), (0, moe.intermediate_size)
    else:
        experts, bounds = range(moe.num_experts), part_of(moe.intermediate_size, layout.tp, part)
    table: _Table = {}
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        if index not in moe.dense_layers:
            layer = f"model.layers.{index}."
            w13, w2 = stacked_experts(model, layer, experts, bounds, transposed=False)
            here = f"{layer}mlp.experts."
            table |= {f"{here}w13_weight": w13, f"{here}w2_weight": w2}
    return table


def _dealt_experts(moe: MoeDescription, ep: int, ep_rank: int) -> range:
    """Return the experts of a rank: the first ranks have one more if they do not divide evenly."""
    each, left = divmod(moe.num_experts, ep)
    start = ep_rank * each + min(ep_rank, left)
    return range(start, start + each + (ep_rank < left))


def _attention(model: ModelDescription, layer: str, tp: int, tp_rank: int) -> _Table:
    here = f"{layer}self_attn."
    if model.mla:
        return _latent(model, layer, here, tp, tp_rank)
    hidden, rows = model.hidden_size, part_of(query_rows(model), tp, tp_rank)
    queries = part_of(projected_query_rows(model), tp, tp_rank)
    parts = (("q", queries), *((letter, _key_value_part(model, tp, tp_rank)) for letter in "kv"))
    table = {
        f"{here}qkv_proj.weight": stack(
            (projection_rows(model, layer, letter, "weight", bounds) for letter, bounds in parts),
            tail=(hidden,),
        ),
        f"{here}o_proj.weight": columns(f"{here}o_proj.weight", hidden, rows),
    }
    if model.attention_bias:
        table[f"{here}qkv_proj.bias"] = stack(
            projection_rows(model, layer, letter, "bias", bounds) for letter, bounds in parts
        )
    if model.qk_norm:
        for letter in ("q", "k"):
            name = f"{here}{letter}_norm.weight"
            table[name] = whole(name, (model.head_dim,))
    return table


def _feed_forward(model: ModelDescription, index: int, layer: str, tp: int, tp_rank: int) -> _Table:
    """Return the table of one layer's feed-forward part, without routed experts."""
    moe, here = model.moe, f"{layer}mlp."
    if moe is None or index in moe.dense_layers:
        return _gated(model, here, part_of(model.intermediate_size, tp, tp_rank))
    name, bias = f"{here}gate.weight", correction_bias(layer)
    router = whole(name, (moe.num_experts, model.hidden_size))
    table = {name: replace(router, float32=model.model_type in _FLOAT32_ROUTERS)}
    if moe.score_correction_bias:
        table[bias] = whole(bias, (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, tp, tp_rank)
        table |= _gated(model, shared_prefix(moe, layer), bounds)
    if moe.gated_shared:
        gate = shared_gate(layer)
        table[gate] = whole(gate, (1, model.hidden_size))
    return table


def _key_value_part(model: ModelDescription, tp: int, tp_rank: int) -> Bounds:
    heads = model.num_key_value_heads
    first, last = (
        part_of(heads, tp, tp_rank)
        if tp <= heads
        else (tp_rank // (tp // heads), tp_rank // (tp // heads) + 1)
    )
    return first * model.head_dim, last * model.head_dim


def _latent(model: ModelDescription, layer: str, here: str, tp: int, tp_rank: int) -> _Table:
    shapes = latent_shapes(model, layer)
    downs = [f"{here}q_a_proj.weight", f"{here}kv_a_proj_with_mqa.weight"]
    table: _Table = {}
    if downs[0] in shapes:
        table[f"{here}fused_qkv_a_proj.weight"] = stack(
            ((name, (0, shapes[name][0])) for name in downs), tail=(model.hidden_size,)
        )
    for name, shape in shapes.items():
        if name == downs[1] and downs[0] not in shapes:
            table[name] = whole(name, shape)
        elif name not in downs:
            table[name] = latent_part(name, shape, tp, tp_rank)
    return table


def _gated(model: ModelDescription, prefix: str, bounds: Bounds) -> _Table:
    hidden = model.hidden_size
    return {
        f"{prefix}gate_up_proj.weight": stack(gate_and_up(model, prefix, bounds), tail=(hidden,)),
        f"{prefix}down_proj.weight": columns(f"{prefix}down_proj.weight", hidden, bounds),
    }
