"""Attention weights of every family: logical, as Megatron-core holds them, as vLLM holds them.

Grouped-query attention: Megatron fuses QKV interleaved by key-value group (the group's query
heads, its key head, its value head) and cuts the rows evenly, inside a group too where there
are more ranks than groups. vLLM stacks the query heads of a rank, then its key heads, then its
value heads, and gives a key-value head to several ranks where there are more ranks than heads.

Multi-head latent attention (DeepSeek): down projections, norms of the latents, up projections
cut by heads. Megatron's local specification cuts the rows of the down projections; vLLM fuses
them and gives them whole to every rank.
"""

from collections.abc import Iterator

from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, columns, part_of, stack, whole

Shapes = dict[str, tuple[int, ...]]
Table = dict[str, LocalTensor]


def attention_shapes(model: ModelDescription, layer: str) -> Shapes:
    """Return the shape of each logical tensor of one layer's attention."""
    if model.mla:
        return _latent_shapes(model, layer)
    hidden, query, key_value = _sizes(model)
    shapes: Shapes = {}
    if model.fused_projections:
        shapes[f"{layer}self_attn.qkv_proj.weight"] = (query + 2 * key_value, hidden)
        return shapes | {f"{layer}self_attn.o_proj.weight": (hidden, query)}
    for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
        shapes[f"{layer}self_attn.{letter}_proj.weight"] = (rows, hidden)
        if model.attention_bias:
            shapes[f"{layer}self_attn.{letter}_proj.bias"] = (rows,)
        if model.qk_norm and letter != "v":
            shapes[f"{layer}self_attn.{letter}_norm.weight"] = (model.head_dim,)
    shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, query)
    return shapes


def training_attention(
    model: ModelDescription, local: str, layer: str, *, tp: int, tp_rank: int
) -> Table:
    """Return the table of one layer's attention in Megatron.

    Args:
        model: Its sizes.
        local: Prefix of the local names.
        layer: Prefix of the logical names.
        tp: Tensor-parallel size.
        tp_rank: Tensor-parallel rank.
    """
    if model.mla:
        return _training_latent(model, local, layer, tp, tp_rank)
    hidden, query, key_value = _sizes(model)
    bounds = part_of(query + 2 * key_value, tp, tp_rank)
    table = {
        f"{local}self_attention.linear_qkv.weight": stack(
            _interleaved(model, layer, "weight", bounds), tail=(hidden,)
        ),
        f"{local}self_attention.linear_proj.weight": columns(
            f"{layer}self_attn.o_proj.weight", hidden, part_of(query, tp, tp_rank)
        ),
    }
    if model.attention_bias:
        table[f"{local}self_attention.linear_qkv.bias"] = stack(
            _interleaved(model, layer, "bias", bounds)
        )
    if model.qk_norm:
        for letter in ("q", "k"):
            table[f"{local}self_attention.{letter}_layernorm.weight"] = whole(
                f"{layer}self_attn.{letter}_norm.weight", (model.head_dim,)
            )
    return table


def rollout_attention(model: ModelDescription, layer: str, *, tp: int, tp_rank: int) -> Table:
    """Return the table of one layer's attention in vLLM, whose layers are named as the logical."""
    if model.mla:
        return _rollout_latent(model, layer, tp, tp_rank)
    hidden, query, _ = _sizes(model)
    rows = part_of(query, tp, tp_rank)
    parts = (("q", rows), *((letter, _key_value_rows(model, tp, tp_rank)) for letter in "kv"))
    here = f"{layer}self_attn."
    table = {
        f"{here}qkv_proj.weight": stack(
            (_filed(model, layer, letter, "weight", bounds) for letter, bounds in parts),
            tail=(hidden,),
        ),
        f"{here}o_proj.weight": columns(f"{here}o_proj.weight", hidden, rows),
    }
    if model.attention_bias:
        table[f"{here}qkv_proj.bias"] = stack(
            _filed(model, layer, letter, "bias", bounds) for letter, bounds in parts
        )
    if model.qk_norm:
        for letter in ("q", "k"):
            name = f"{here}{letter}_norm.weight"
            table[name] = whole(name, (model.head_dim,))
    return table


def _sizes(model: ModelDescription) -> tuple[int, int, int]:
    """Return the hidden size and the rows of the query and of the key projection."""
    query = model.num_attention_heads * model.head_dim
    return model.hidden_size, query, model.num_key_value_heads * model.head_dim


def _key_value_rows(model: ModelDescription, tp: int, tp_rank: int) -> tuple[int, int]:
    heads = model.num_key_value_heads
    first, last = (
        part_of(heads, tp, tp_rank)
        if tp <= heads
        else (tp_rank // (tp // heads), tp_rank // (tp // heads) + 1)
    )
    return first * model.head_dim, last * model.head_dim


def _interleaved(
    model: ModelDescription, layer: str, kind: str, bounds: tuple[int, int]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what the rows `bounds` of the whole interleaved QKV matrix hold."""
    head, per_group = model.head_dim, model.heads_per_group
    row = 0
    for group in range(model.num_key_value_heads):
        for letter, rows in (("q", per_group * head), ("k", head), ("v", head)):
            start, stop = max(bounds[0], row), min(bounds[1], row + rows)
            origin = group * rows - row
            if start < stop:
                yield _filed(model, layer, letter, kind, (start + origin, stop + origin))
            row += rows


def _filed(
    model: ModelDescription, layer: str, letter: str, kind: str, bounds: tuple[int, int]
) -> tuple[str, tuple[int, int]]:
    """Return which rows of which logical tensor are rows `bounds` of one projection."""
    if not model.fused_projections:
        return f"{layer}self_attn.{letter}_proj.{kind}", bounds
    _, query, key_value = _sizes(model)
    first = {"q": 0, "k": query, "v": query + key_value}[letter]
    return f"{layer}self_attn.qkv_proj.{kind}", (first + bounds[0], first + bounds[1])


def _latent_shapes(model: ModelDescription, layer: str) -> Shapes:
    assert model.mla is not None
    mla, hidden, heads = model.mla, model.hidden_size, model.num_attention_heads
    here = f"{layer}self_attn."
    shapes: Shapes = {}
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


def _training_latent(
    model: ModelDescription, local: str, layer: str, tp: int, tp_rank: int
) -> Table:
    shapes = _latent_shapes(model, layer)
    table: Table = {}
    for ours, theirs in _LATENT_NAMES.items():
        name = f"{layer}self_attn.{theirs}"
        if name in shapes:
            table[f"{local}self_attention.{ours}"] = _latent_part(name, shapes[name], tp, tp_rank)
    return table


def _rollout_latent(model: ModelDescription, layer: str, tp: int, tp_rank: int) -> Table:
    here = f"{layer}self_attn."
    shapes = _latent_shapes(model, layer)
    downs = [f"{here}q_a_proj.weight", f"{here}kv_a_proj_with_mqa.weight"]
    table: Table = {}
    if downs[0] in shapes:
        table[f"{here}fused_qkv_a_proj.weight"] = stack(
            ((name, (0, shapes[name][0])) for name in downs), tail=(model.hidden_size,)
        )
    for name, shape in shapes.items():
        if name == downs[1] and downs[0] not in shapes:
            table[name] = whole(name, shape)
        elif name not in downs:
            table[name] = _latent_part(name, shape, tp, tp_rank)
    return table


def _latent_part(name: str, shape: tuple[int, ...], tp: int, tp_rank: int) -> LocalTensor:
    """Cut the rows of a projection, the columns of the output projection, and no norm."""
    if len(shape) == 1:
        return whole(name, shape)
    if name.endswith("o_proj.weight"):
        return columns(name, shape[0], part_of(shape[1], tp, tp_rank))
    return stack([(name, part_of(shape[0], tp, tp_rank))], tail=shape[1:])
