"""Tensors of families with gated delta nets by config.json alone, to plan without weight files.

Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.models.gated_delta import gated_delta_net, gated_delta_shapes
from mindrl.models.mixture import experts_of
from mindrl.models.placement import Shape

_Tensors = Iterator[tuple[str, Shape]]


def planned_shapes(values: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the name and shape of each tensor; empty for other families.

    Raises:
        ValueError: A size is missing or invalid.
    """
    delta = gated_delta_net(values)
    if delta is None:
        return {}
    hidden, vocabulary = _size(values, "hidden_size"), _size(values, "vocab_size")
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for index in range(_size(values, "num_hidden_layers")):
        layer = f"model.layers.{index}."
        if index in delta.layers:
            shapes |= gated_delta_shapes(delta, hidden, layer)
        else:
            shapes |= _attention(values, hidden, f"{layer}self_attn.")
        shapes |= _feed_forward(values, index, hidden, f"{layer}mlp.")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not values.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _attention(values: Mapping[str, Any], hidden: int, here: str) -> dict[str, Shape]:
    width, heads = _size(values, "head_dim"), _size(values, "num_attention_heads")
    rows, own = _size(values, "num_key_value_heads") * width, heads * width
    return {
        # Queries and the gate of the output.
        f"{here}q_proj.weight": (2 * own, hidden),
        f"{here}k_proj.weight": (rows, hidden),
        f"{here}v_proj.weight": (rows, hidden),
        f"{here}o_proj.weight": (hidden, own),
        f"{here}q_norm.weight": (width,),
        f"{here}k_norm.weight": (width,),
    }


def _feed_forward(values: Mapping[str, Any], index: int, hidden: int, here: str) -> _Tensors:
    moe = experts_of(values)
    if not moe or index in moe["dense_layers"]:
        yield from _gated(here, hidden, _size(values, "intermediate_size"))
        return
    experts = _size(values, "num_experts")
    yield f"{here}gate.weight", (experts, hidden)
    for expert in range(experts):
        prefix = f"{here}experts.{expert}."
        yield from _gated(prefix, hidden, _size(values, "moe_intermediate_size"))
    width = _size(values, "shared_expert_intermediate_size")
    yield from _gated(f"{here}shared_expert.", hidden, width)
    yield f"{here}shared_expert_gate.weight", (1, hidden)


def _gated(prefix: str, hidden: int, width: int) -> _Tensors:
    yield f"{prefix}gate_proj.weight", (width, hidden)
    yield f"{prefix}up_proj.weight", (width, hidden)
    yield f"{prefix}down_proj.weight", (hidden, width)


def _size(values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if type(found) is not int or found < 1:
        raise ValueError(f"{name}={found!r} must be an integer of at least 1")
    return found
