"""What a sequence costs in the forward pass, from the sizes of the model. Imports no torch."""

from math import prod

from mindrl.models.attention import attention_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import feed_forward_shapes


def forward_cost(model: ModelDescription) -> tuple[float, float]:
    """Return the floating-point operations of T tokens: the factors of T and of T**2.

    The factor of T counts each matrix that a token meets, an addition and a multiplication per
    weight: attention, feed-forward (of the experts those chosen and those shared), the head. The
    factor of T**2 is of causal attention: each of T**2 / 2 pairs of tokens costs an addition and a
    multiplication per width of a query head, and per width of a value head. Norms, biases and
    rotations are left out. Backward costs twice as much, so the ratio of the two holds for both.
    """
    moe = model.moe
    chosen = moe.num_experts_per_tok / moe.num_experts if moe else 1.0
    weights = float(model.vocab_size * model.hidden_size)
    for index in range(model.num_hidden_layers):
        shapes = attention_shapes(model, "") | feed_forward_shapes(model, index, "")
        for name, shape in shapes.items():
            if len(shape) == 2:
                weights += prod(shape) * (chosen if name.startswith("mlp.experts.") else 1.0)
    widths = model.mla.qk_head_dim + model.mla.v_head_dim if model.mla else 2 * model.head_dim
    return 2 * weights, float(model.num_hidden_layers * model.num_attention_heads * widths)
