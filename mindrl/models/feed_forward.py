"""Feed-forward weights as Hugging Face names them: dense, routed experts, shared experts."""

from mindrl.models.description import ModelDescription
from mindrl.models.placement import Bounds, Rows, Shape

HALVES = ("gate", "up")


def feed_forward_shapes(model: ModelDescription, index: int, layer: str) -> dict[str, Shape]:
    """Return the shape of each logical tensor of one layer's feed-forward part."""
    moe, hidden = model.moe, model.hidden_size
    if moe is None or index in moe.dense_layers:
        return _dense_shapes(model, f"{layer}mlp.")
    shapes: dict[str, Shape] = {f"{layer}mlp.gate.weight": (moe.num_experts, hidden)}
    if moe.score_correction_bias:
        shapes[correction_bias(layer)] = (moe.num_experts,)
    if moe.shared_intermediate_size:
        shared = f"{layer}mlp.shared_experts."
        shapes |= _gated_shapes(shared, hidden, moe.shared_intermediate_size)
    for expert in range(moe.num_experts):
        shapes |= _gated_shapes(expert_prefix(layer, expert), hidden, moe.intermediate_size)
    return shapes


def gate_and_up(model: ModelDescription, prefix: str, bounds: Bounds) -> list[Rows]:
    """Return where some rows of the gate projection and the same rows of up lie.

    Args:
        model: Its sizes.
        prefix: Of the logical names.
        bounds: Rows of either projection.
    """
    if not model.fused_projections:
        return [(f"{prefix}{half}_proj.weight", bounds) for half in HALVES]
    name, width = f"{prefix}gate_up_proj.weight", model.intermediate_size
    return [(name, bounds), (name, (width + bounds[0], width + bounds[1]))]


def expert_prefix(layer: str, expert: int) -> str:
    """Return the prefix of the logical names of one routed expert."""
    return f"{layer}mlp.experts.{expert}."


def correction_bias(layer: str) -> str:
    """Return the logical name of the bias by which a router chooses experts."""
    return f"{layer}mlp.gate.e_score_correction_bias"


def _dense_shapes(model: ModelDescription, prefix: str) -> dict[str, Shape]:
    hidden, width = model.hidden_size, model.intermediate_size
    if not model.fused_projections:
        return _gated_shapes(prefix, hidden, width)
    return {
        f"{prefix}gate_up_proj.weight": (2 * width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _gated_shapes(prefix: str, hidden: int, width: int) -> dict[str, Shape]:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }
