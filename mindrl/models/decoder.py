"""Logical tensors of a decoder of any family, their sizes and compute cost. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from mindrl.models.attention import attention_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import feed_forward_shapes
from mindrl.models.gated_delta import gated_delta_shapes
from mindrl.models.other_family import OtherFamily
from mindrl.models.placement import Shape

DType = Literal["float32", "bfloat16"]
Head = Literal["vocabulary", "value"]
"""What the head computes from the last hidden states: logits of tokens, or one number."""
ELEMENT_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
VALUE_HEAD = "score.weight"


def always_float32(tensor: str) -> bool:
    """Return whether a logical tensor is float32 regardless of the model's dtype."""
    return tensor.endswith(("e_score_correction_bias", "linear_attn.A_log"))


def is_of_experts(tensor: str) -> bool:
    """Return whether a logical tensor belongs to routed experts."""
    return "mlp.experts." in tensor


def padded_vocab_size(model: ModelDescription, tp: int) -> int:
    """Return the vocabulary rows in training: rounded up to a multiple of tp."""
    return -(-model.vocab_size // tp) * tp


def logical_shapes(model: ModelDescription, *, head: Head = "vocabulary") -> dict[str, Shape]:
    """Return the shape of each logical tensor, in the order of the layers."""
    hidden = model.hidden_size
    if model.other:
        return _of_another_family(model.other, hidden, head)
    shapes: dict[str, Shape] = {EMBEDDING: (model.vocab_size, hidden)}
    for index in range(model.num_hidden_layers):
        shapes |= _layer_shapes(model, index, f"model.layers.{index}.")
    shapes[NORM] = (hidden,)
    if head == "value":
        shapes[VALUE_HEAD] = (1, hidden)
    elif not model.tie_word_embeddings:
        shapes[HEAD] = (model.vocab_size, hidden)
    return shapes


def _of_another_family(other: OtherFamily, hidden: int, head: Head) -> dict[str, Shape]:
    shapes = dict(other.tensors)
    if head == "value":
        if other.head != other.embedding:
            del shapes[other.head]
        shapes[VALUE_HEAD] = (1, hidden)
    return shapes


def layer_of(tensor: str) -> int | None:
    """Return the decoder layer of a logical tensor: the first number in its name.

    Tensors of a vision tower are in none.
    """
    if "visual" in tensor.split(".")[:2]:
        return None
    return next((int(part) for part in tensor.split(".") if part.isdigit()), None)


def _shapes_by_layer(model: ModelDescription) -> list[dict[str, Shape]]:
    layers = range(model.num_hidden_layers)
    if model.other is None:
        return [_layer_shapes(model, index, "") for index in layers]
    found: list[dict[str, Shape]] = [{} for _ in layers]
    for name, shape in model.other.tensors:
        if (index := layer_of(name)) is not None:
            found[index][name] = shape
    return found


def _layer_shapes(model: ModelDescription, index: int, layer: str) -> dict[str, Shape]:
    norms, delta = ("input_layernorm", "post_attention_layernorm"), model.delta
    return {
        **(
            gated_delta_shapes(delta, model.hidden_size, layer)
            if delta and model.is_linear(index)
            else attention_shapes(model, layer)
        ),
        **feed_forward_shapes(model, index, layer),
        **{f"{layer}{name}.weight": (model.hidden_size,) for name in norms},
    }


def forward_cost(model: ModelDescription) -> tuple[float, float]:
    """Return the floating-point operations of T tokens, as the factors of T and of T**2.

    The factor of T counts each matrix that a token passes, an addition and a multiplication per
    weight: attention, feed-forward (chosen and shared experts only), the head. The factor of T**2
    counts causal attention: each of T**2 / 2 pairs of tokens costs an addition and a multiplication
    per width of a query head, and per width of a value head. Norms, biases and rotations are not
    counted. The backward pass costs twice as much, so the ratio of both factors holds for it too.
    """
    moe = model.moe
    chosen = moe.num_experts_per_tok / moe.num_experts if moe else 1.0
    weights = float(model.vocab_size * model.hidden_size)
    for shapes in _shapes_by_layer(model):
        for name, shape in shapes.items():
            if len(shape) == 2:
                weights += prod(shape) * (chosen if is_of_experts(name) else 1.0)
    widths = model.mla.qk_head_dim + model.mla.v_head_dim if model.mla else 2 * model.head_dim
    return 2 * weights, float(model.attention_layers * model.num_attention_heads * widths)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameter counts of a model, by location."""

    dense: tuple[int, ...]
    """Parameters of each layer without its routed experts."""
    experts: tuple[int, ...]
    """Parameters of the routed experts of each layer."""
    embedding: int
    head: int
    """Parameters of head and last norm; a tied head counts the norm only."""


def parameters_of(model: ModelDescription) -> Parameters:
    """Return the parameter counts of a model."""
    dense, experts = [], []
    for shapes in _shapes_by_layer(model):
        routed = [prod(shape) for name, shape in shapes.items() if is_of_experts(name)]
        experts.append(sum(routed))
        dense.append(sum(map(prod, shapes.values())) - experts[-1])
    embedding = model.vocab_size * model.hidden_size
    return Parameters(
        dense=tuple(dense),
        experts=tuple(experts),
        embedding=embedding,
        head=model.hidden_size + (0 if model.tie_word_embeddings else embedding),
    )
