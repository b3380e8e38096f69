"""Feed-forward weights under Hugging Face's names: dense, routed experts, shared experts."""

from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.placement import Bounds, LocalTensor, Placement, Rows, Shape, box_of

_HALVES = ("gate", "up")


def feed_forward_shapes(model: ModelDescription, index: int, layer: str) -> dict[str, Shape]:
    """Return the shape of each logical tensor of one layer's feed-forward part."""
    moe, hidden = model.moe, model.hidden_size
    if moe is None or index in moe.dense_layers:
        width, fused = model.intermediate_size, model.fused_projections
        return _gated_shapes(f"{layer}mlp.", hidden, width, fused=fused)
    shapes: dict[str, Shape] = {f"{layer}mlp.gate.weight": (moe.num_experts, hidden)}
    if moe.score_correction_bias:
        shapes[correction_bias(layer)] = (moe.num_experts,)
    if moe.shared_intermediate_size:
        shared = shared_prefix(moe, layer)
        shapes |= _gated_shapes(shared, hidden, moe.shared_intermediate_size)
    if moe.gated_shared:
        shapes[shared_gate(layer)] = (1, hidden)
    for expert in range(moe.num_experts):
        shapes |= _gated_shapes(expert_prefix(layer, expert), hidden, moe.intermediate_size)
    return shapes


def gate_and_up(model: ModelDescription, prefix: str, bounds: Bounds) -> list[Rows]:
    """Return the logical rows of some rows of the gate projection, and of the same rows of up."""
    if not model.fused_projections:
        return [(f"{prefix}{half}_proj.weight", bounds) for half in _HALVES]
    name, width = f"{prefix}gate_up_proj.weight", model.intermediate_size
    return [(name, bounds), (name, (width + bounds[0], width + bounds[1]))]


def stacked_experts(
    model: ModelDescription, layer: str, experts: range, bounds: Bounds, *, transposed: bool
) -> tuple[LocalTensor, LocalTensor]:
    """Return the local tensors of experts stacked in three dimensions.

    Each holds `bounds` of the intermediate size; `transposed` puts its columns first.

    Returns:
        Gate and up of all experts, gate rows before up rows, and the down projections.
    """
    hidden, width = (0, model.hidden_size), bounds[1] - bounds[0]
    axes = (2, 1) if transposed else (1, 2)

    def placed(
        name: str, at: int, source: tuple[Bounds, Bounds], local: tuple[Bounds, Bounds]
    ) -> Placement:
        rows, columns = local[::-1] if transposed else local
        here = box_of((at, at + 1), rows, columns)
        return Placement(tensor=name, source=box_of(*source), local=here, axes=axes)

    first, second = [], []
    for at, expert in enumerate(experts):
        prefix = expert_prefix(layer, expert)
        for half, letter in enumerate(_HALVES):
            rows = (half * width, (half + 1) * width)
            name = f"{prefix}{letter}_proj.weight"
            first.append(placed(name, at, (bounds, hidden), (rows, hidden)))
        name = f"{prefix}down_proj.weight"
        second.append(placed(name, at, (hidden, bounds), (hidden, (0, width))))

    def whole_stack(rows: int, columns: int, placements: list[Placement]) -> LocalTensor:
        sizes = (columns, rows) if transposed else (rows, columns)
        return LocalTensor(shape=(len(experts), *sizes), placements=tuple(placements))

    size = model.hidden_size
    return whole_stack(2 * width, size, first), whole_stack(size, width, second)


def expert_prefix(layer: str, expert: int) -> str:
    """Return the prefix of the logical names of one routed expert."""
    return f"{layer}mlp.experts.{expert}."


def shared_prefix(moe: MoeDescription, layer: str) -> str:
    """Return the prefix of the logical names of the shared experts."""
    return f"{layer}mlp.shared_expert{'' if moe.gated_shared else 's'}."


def shared_gate(layer: str) -> str:
    """Return the logical name of the gate on the output of the only shared expert."""
    return f"{layer}mlp.shared_expert_gate.weight"


def correction_bias(layer: str) -> str:
    """Return the logical name of a router's correction bias."""
    return f"{layer}mlp.gate.e_score_correction_bias"


def _gated_shapes(prefix: str, hidden: int, width: int, *, fused: bool = False) -> dict[str, Shape]:
    rows = {"gate_up": 2 * width} if fused else dict.fromkeys(_HALVES, width)
    shapes: dict[str, Shape] = {
        f"{prefix}{half}_proj.weight": (rows[half], hidden) for half in rows
    }
    return shapes | {f"{prefix}down_proj.weight": (hidden, width)}
