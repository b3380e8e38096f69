"""Attention weights under Hugging Face's names: grouped-query, and multi-head latent (DeepSeek)."""

from mindrl.models.description import ModelDescription
from mindrl.models.placement import Bounds, LocalTensor, Rows, Shape, columns, part_of, stack, whole


def attention_shapes(model: ModelDescription, layer: str) -> dict[str, Shape]:
    """Return the shape of each logical tensor of one layer's attention."""
    if model.mla:
        return latent_shapes(model, layer)
    hidden, query, key_value = model.hidden_size, query_rows(model), key_value_rows(model)
    here = f"{layer}self_attn."
    shapes: dict[str, Shape] = {}
    projections = {"q": projected_query_rows(model), "k": key_value, "v": key_value}
    if model.fused_projections:
        projections = {"qkv": query + 2 * key_value}
    for letter, rows in projections.items():
        shapes[f"{here}{letter}_proj.weight"] = (rows, hidden)
        if model.attention_bias:
            shapes[f"{here}{letter}_proj.bias"] = (rows,)
        if model.qk_norm and letter in ("q", "k"):
            shapes[f"{here}{letter}_norm.weight"] = (model.head_dim,)
    shapes[f"{here}o_proj.weight"] = (hidden, query)
    return shapes


def query_rows(model: ModelDescription) -> int:
    """Return the width of all query heads."""
    return model.num_attention_heads * model.head_dim


def projected_query_rows(model: ModelDescription) -> int:
    """Return the rows of the query projection, with gates if there are gated delta nets."""
    return query_rows(model) * (2 if model.delta else 1)


def key_value_rows(model: ModelDescription) -> int:
    """Return the number of rows of the key projection, the same as of the value projection."""
    return model.num_key_value_heads * model.head_dim


def projection_rows(
    model: ModelDescription, layer: str, letter: str, kind: str, bounds: Bounds
) -> Rows:
    """Return the logical tensor, and its rows, for some rows of a projection: q, k or v.

    `layer` is the prefix of the logical names, `kind` is `weight` or `bias`.
    """
    if not model.fused_projections:
        return f"{layer}self_attn.{letter}_proj.{kind}", bounds
    query = query_rows(model)
    first = {"q": 0, "k": query, "v": query + key_value_rows(model)}[letter]
    return f"{layer}self_attn.qkv_proj.{kind}", (first + bounds[0], first + bounds[1])


def latent_shapes(model: ModelDescription, layer: str) -> dict[str, Shape]:
    """Return the shapes of latent attention: down projections, norms of latents, up projections."""
    assert model.mla is not None
    mla, hidden, heads = model.mla, model.hidden_size, model.num_attention_heads
    here = f"{layer}self_attn."
    shapes: dict[str, Shape] = {}
    if mla.q_lora_rank is None:
        shapes[f"{here}q_proj.weight"] = (heads * mla.qk_head_dim, hidden)
    else:
        shapes[f"{here}q_a_proj.weight"] = (mla.q_lora_rank, hidden)
        shapes[f"{here}q_a_layernorm.weight"] = (mla.q_lora_rank,)
        shapes[f"{here}q_b_proj.weight"] = (heads * mla.qk_head_dim, mla.q_lora_rank)
    shapes[f"{here}kv_a_proj_with_mqa.weight"] = (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
    shapes[f"{here}kv_a_layernorm.weight"] = (mla.kv_lora_rank,)
    up_rows = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    shapes[f"{here}kv_b_proj.weight"] = (up_rows, mla.kv_lora_rank)
    shapes[f"{here}o_proj.weight"] = (hidden, heads * mla.v_head_dim)
    return shapes


def latent_part(name: str, shape: Shape, tp: int, tp_rank: int) -> LocalTensor:
    """Return a rank's part: rows of a projection, columns of the output one, or a whole norm."""
    if len(shape) == 1:
        return whole(name, shape)
    if name.endswith("o_proj.weight"):
        return columns(name, shape[0], part_of(shape[1], tp, tp_rank))
    return stack([(name, part_of(shape[0], tp, tp_rank))], tail=shape[1:])
