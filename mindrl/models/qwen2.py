"""Qwen2 and Qwen2.5: logical tensors, and how Megatron-core holds them under tensor parallelism.

Megatron's layout: QKV is fused and interleaved by key-value group (the group's query heads,
its key head, its value head); gate and up are fused, each cut by rank first; the vocabulary
is padded to a multiple of the tensor-parallel size.
"""

from mindrl.models.description import ModelDescription
from mindrl.models.placement import Box, LocalTensor, Placement, ShardingTable


def padded_vocab_size(model: ModelDescription, tp: int) -> int:
    """Return the vocabulary size rounded up to a multiple of the tensor-parallel size."""
    return -(-model.vocab_size // tp) * tp


def logical_shapes(model: ModelDescription) -> dict[str, tuple[int, ...]]:
    """Return the shape of each logical tensor, in the order of the layers."""
    hidden, ffn = model.hidden_size, model.intermediate_size
    query = model.num_attention_heads * model.head_dim
    key_value = model.num_key_value_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab_size, hidden),
    }
    for index in range(model.num_hidden_layers):
        layer = f"model.layers.{index}."
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
            shapes[f"{layer}self_attn.{letter}_proj.weight"] = (rows, hidden)
            shapes[f"{layer}self_attn.{letter}_proj.bias"] = (rows,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, query)
        shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{layer}mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[f"{layer}mlp.up_proj.weight"] = (ffn, hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, ffn)
    shapes["model.norm.weight"] = (hidden,)
    if not model.tie_word_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes


def training_table(model: ModelDescription, *, tp: int, tp_rank: int) -> ShardingTable:
    """Return the sharding table of one tensor-parallel rank of the Megatron model."""
    hidden = model.hidden_size
    table = {
        "embedding.word_embeddings.weight": _vocabulary(
            model, "model.embed_tokens.weight", tp, tp_rank
        )
    }
    for index in range(model.num_hidden_layers):
        table |= _layer(model, index, tp, tp_rank)
    table["decoder.final_layernorm.weight"] = _whole("model.norm.weight", (hidden,))
    if not model.tie_word_embeddings:
        table["output_layer.weight"] = _vocabulary(model, "lm_head.weight", tp, tp_rank)
    return table


def _layer(model: ModelDescription, index: int, tp: int, tp_rank: int) -> dict[str, LocalTensor]:
    ours, theirs = f"decoder.layers.{index}.", f"model.layers.{index}."
    hidden, ffn = model.hidden_size, model.intermediate_size // tp
    query = model.num_attention_heads * model.head_dim // tp
    return {
        f"{ours}input_layernorm.weight": _whole(f"{theirs}input_layernorm.weight", (hidden,)),
        f"{ours}self_attention.linear_qkv.weight": _qkv(model, (theirs, "weight"), tp, tp_rank),
        f"{ours}self_attention.linear_qkv.bias": _qkv(model, (theirs, "bias"), tp, tp_rank),
        f"{ours}self_attention.linear_proj.weight": _columns(
            f"{theirs}self_attn.o_proj.weight", hidden, query, tp_rank
        ),
        f"{ours}pre_mlp_layernorm.weight": _whole(
            f"{theirs}post_attention_layernorm.weight", (hidden,)
        ),
        f"{ours}mlp.linear_fc1.weight": LocalTensor(
            shape=(2 * ffn, hidden),
            placements=tuple(
                Placement(
                    tensor=f"{theirs}mlp.{name}_proj.weight",
                    source=((tp_rank * ffn, (tp_rank + 1) * ffn), (0, hidden)),
                    local=((half * ffn, (half + 1) * ffn), (0, hidden)),
                )
                for half, name in enumerate(("gate", "up"))
            ),
        ),
        f"{ours}mlp.linear_fc2.weight": _columns(
            f"{theirs}mlp.down_proj.weight", hidden, ffn, tp_rank
        ),
    }


def _qkv(model: ModelDescription, name: tuple[str, str], tp: int, tp_rank: int) -> LocalTensor:
    """Interleave by key-value group; needs tp to divide the key-value heads."""
    layer, kind = name
    head, per_group = model.head_dim, model.heads_per_group
    groups = model.num_key_value_heads // tp
    tail: Box = ((0, model.hidden_size),) if kind == "weight" else ()
    placements = []
    row = 0
    for group in range(tp_rank * groups, (tp_rank + 1) * groups):
        for letter, rows in (("q", per_group * head), ("k", head), ("v", head)):
            placements.append(
                Placement(
                    tensor=f"{layer}self_attn.{letter}_proj.{kind}",
                    source=((group * rows, (group + 1) * rows), *tail),
                    local=((row, row + rows), *tail),
                )
            )
            row += rows
    return LocalTensor(shape=(row, *(stop for _, stop in tail)), placements=tuple(placements))


def _vocabulary(model: ModelDescription, name: str, tp: int, tp_rank: int) -> LocalTensor:
    rows = padded_vocab_size(model, tp) // tp
    start = tp_rank * rows
    stop = min(start + rows, model.vocab_size)
    columns = (0, model.hidden_size)
    placement = Placement(
        tensor=name, source=((start, stop), columns), local=((0, stop - start), columns)
    )
    return LocalTensor(shape=(rows, model.hidden_size), placements=(placement,))


def _columns(name: str, rows: int, columns: int, tp_rank: int) -> LocalTensor:
    placement = Placement(
        tensor=name,
        source=((0, rows), (tp_rank * columns, (tp_rank + 1) * columns)),
        local=((0, rows), (0, columns)),
    )
    return LocalTensor(shape=(rows, columns), placements=(placement,))


def _whole(name: str, shape: tuple[int, ...]) -> LocalTensor:
    box = tuple((0, size) for size in shape)
    return LocalTensor(shape=shape, placements=(Placement(tensor=name, source=box, local=box),))
