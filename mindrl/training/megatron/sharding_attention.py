"""Attention weights as Megatron-core holds them.

Grouped-query attention: Megatron fuses QKV interleaved by key-value group (the group's query
heads, its key head, its value head) and cuts the rows evenly, inside a group too where there
are more ranks than groups. Multi-head latent attention (DeepSeek): its local specification cuts
the rows of the down projections too. Imports no torch.
"""

from collections.abc import Iterator

from mindrl.models.attention import (
    key_value_rows,
    latent_part,
    latent_shapes,
    projection_rows,
    query_rows,
)
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Bounds, LocalTensor, Rows, columns, part_of, stack, whole

_LATENT_NAMES = {
    "linear_q_proj.weight": "q_proj.weight",
    "linear_q_down_proj.weight": "q_a_proj.weight",
    "q_layernorm.weight": "q_a_layernorm.weight",
    "linear_q_up_proj.weight": "q_b_proj.weight",
    "linear_kv_down_proj.weight": "kv_a_proj_with_mqa.weight",
    "kv_layernorm.weight": "kv_a_layernorm.weight",
    "linear_kv_up_proj.weight": "kv_b_proj.weight",
    "linear_proj.weight": "o_proj.weight",
}
"""Megatron's names of latent attention, and the logical ones."""


def attention_table(
    model: ModelDescription, local: str, layer: str, *, tp: int, tp_rank: int
) -> dict[str, LocalTensor]:
    """Return the table of one layer's attention.

    Args:
        model: Its sizes.
        local: Prefix of the local names.
        layer: Prefix of the logical names.
        tp: Tensor-parallel size.
        tp_rank: Tensor-parallel rank.
    """
    here = f"{local}self_attention."
    if model.mla:
        return _latent(model, here, layer, tp, tp_rank)
    hidden, query = model.hidden_size, query_rows(model)
    bounds = part_of(query + 2 * key_value_rows(model), tp, tp_rank)
    table = {
        f"{here}linear_qkv.weight": stack(
            _interleaved(model, layer, "weight", bounds), tail=(hidden,)
        ),
        f"{here}linear_proj.weight": columns(
            f"{layer}self_attn.o_proj.weight", hidden, part_of(query, tp, tp_rank)
        ),
    }
    if model.attention_bias:
        table[f"{here}linear_qkv.bias"] = stack(_interleaved(model, layer, "bias", bounds))
    if model.qk_norm:
        for letter in ("q", "k"):
            name = f"{layer}self_attn.{letter}_norm.weight"
            table[f"{here}{letter}_layernorm.weight"] = whole(name, (model.head_dim,))
    return table


def _interleaved(model: ModelDescription, layer: str, kind: str, bounds: Bounds) -> Iterator[Rows]:
    """Yield what the rows `bounds` of the whole interleaved QKV matrix hold."""
    head, per_group = model.head_dim, model.heads_per_group
    row = 0
    for group in range(model.num_key_value_heads):
        for letter, rows in (("q", per_group * head), ("k", head), ("v", head)):
            start, stop = max(bounds[0], row), min(bounds[1], row + rows)
            origin = group * rows - row
            if start < stop:
                yield projection_rows(model, layer, letter, kind, (start + origin, stop + origin))
            row += rows


def _latent(
    model: ModelDescription, here: str, layer: str, tp: int, tp_rank: int
) -> dict[str, LocalTensor]:
    shapes = latent_shapes(model, layer)
    logical = {ours: f"{layer}self_attn.{theirs}" for ours, theirs in _LATENT_NAMES.items()}
    return {
        f"{here}{ours}": latent_part(name, shapes[name], tp, tp_rank)
        for ours, name in logical.items()
        if name in shapes
    }
