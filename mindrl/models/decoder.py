"""The logical tensors of a decoder of any family, and what their elements are."""

from collections.abc import Mapping
from typing import Literal

from mindrl.models.attention import attention_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import feed_forward_shapes
from mindrl.models.placement import Shape

DType = Literal["float32", "bfloat16"]
Head = Literal["vocabulary", "value"]
"""What the last hidden states become: the logits of tokens, or one number."""
ELEMENT_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
VALUE_HEAD = "score.weight"


def always_float32(tensor: str) -> bool:
    """Say whether a logical tensor is float32 whatever the model's type."""
    return tensor.endswith("e_score_correction_bias")


def logical_shapes(model: ModelDescription, *, head: Head = "vocabulary") -> dict[str, Shape]:
    """Return the shape of each logical tensor, in the order of the layers."""
    hidden = model.hidden_size
    shapes: dict[str, Shape] = {EMBEDDING: (model.vocab_size, hidden)}
    for index in range(model.num_hidden_layers):
        layer = f"model.layers.{index}."
        shapes |= attention_shapes(model, layer) | feed_forward_shapes(model, index, layer)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (hidden,)
    shapes[NORM] = (hidden,)
    if head == "value":
        shapes[VALUE_HEAD] = (1, hidden)
    elif not model.tie_word_embeddings:
        shapes[HEAD] = (model.vocab_size, hidden)
    return shapes
