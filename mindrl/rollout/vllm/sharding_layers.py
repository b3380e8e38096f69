"""The weights of a layer as vLLM holds them, under their logical names but where it fuses them.

Grouped-query attention: vLLM stacks the query heads of a rank, then its key heads, then its value
heads, and gives a key-value head to several ranks where there are more ranks than heads.
Multi-head latent attention (DeepSeek): it fuses the down projections and gives them whole to
every rank. Gate and up are fused, each cut by rank first. All experts of a rank are stacked in
`w13` and `w2`: under tensor parallelism every rank has its part of each expert, under expert
parallelism some experts whole. Imports no torch.
"""

from mindrl.models.attention import latent_part, latent_shapes, projection_rows, query_rows
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import (
    correction_bias,
    gate_and_up,
    stacked_experts,
)
from mindrl.models.placement import (
    Bounds,
    LocalTensor,
    columns,
    part_of,
    stack,
    whole,
)

_Table = dict[str, LocalTensor]


def attention_table(model: ModelDescription, layer: str, *, tp: int, tp_rank: int) -> _Table:
    """Return the table of one layer's attention."""
    here = f"{layer}self_attn."
    if model.mla:
        return _latent(model, layer, here, tp, tp_rank)
    hidden, rows = model.hidden_size, part_of(query_rows(model), tp, tp_rank)
    parts = (("q", rows), *((letter, _key_value_part(model, tp, tp_rank)) for letter in "kv"))
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


def feed_forward_table(
    model: ModelDescription, index: int, layer: str, *, tp: int, tp_rank: int
) -> _Table:
    """Return the table of one layer's feed-forward part, without routed experts."""
    moe, here = model.moe, f"{layer}mlp."
    if moe is None or index in moe.dense_layers:
        return _gated(model, here, part_of(model.intermediate_size, tp, tp_rank))
    name, bias = f"{here}gate.weight", correction_bias(layer)
    table = {name: whole(name, (moe.num_experts, model.hidden_size))}
    if moe.score_correction_bias:
        table[bias] = whole(bias, (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, tp, tp_rank)
        table |= _gated(model, f"{here}shared_experts.", bounds)
    return table


def experts_table(model: ModelDescription, layer: str, experts: range, bounds: Bounds) -> _Table:
    """Return the table of one layer's routed experts.

    Args:
        model: Its sizes.
        layer: Prefix of the names.
        experts: Those of this rank.
        bounds: The part of the intermediate size that this rank has of each.
    """
    w13, w2 = stacked_experts(model, layer, experts, bounds, transposed=False)
    here = f"{layer}mlp.experts."
    return {f"{here}w13_weight": w13, f"{here}w2_weight": w2}


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
