"""Feed-forward weights of every family: dense, routed experts, shared experts.

Megatron and vLLM both fuse gate and up, each cut by rank first. Megatron keeps each expert
apart (SequentialMLP), apart under other names (TEGroupedMLP), or all of a rank in two matrices
that are transposed (GroupedMLP); experts are dealt whole to the expert-parallel ranks and cut by
the expert tensor-parallel size. vLLM stacks all experts of a rank in `w13` and `w2`: under tensor
parallelism every rank has its part of each expert, under expert parallelism some experts whole.
"""

from typing import Literal

from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.placement import LocalTensor, Placement, columns, part_of, stack, whole

Shapes = dict[str, tuple[int, ...]]
Table = dict[str, LocalTensor]
ExpertStorage = Literal["sequential", "te_grouped", "grouped"]
"""How Megatron stores the experts of a rank, by the names of its classes."""

_HALVES = ("gate", "up")


def feed_forward_shapes(model: ModelDescription, index: int, layer: str) -> Shapes:
    """Return the shape of each logical tensor of one layer's feed-forward part."""
    moe = model.moe
    if moe is None or index in moe.dense_layers:
        return _dense_shapes(model, layer)
    shapes: Shapes = {f"{layer}mlp.gate.weight": (moe.num_experts, model.hidden_size)}
    if moe.score_correction_bias:
        shapes[_correction_bias(layer)] = (moe.num_experts,)
    if moe.shared_intermediate_size:
        shared = f"{layer}mlp.shared_experts."
        shapes |= _gated_shapes(shared, model.hidden_size, moe.shared_intermediate_size)
    for expert in range(moe.num_experts):
        name = _expert(layer, expert)
        shapes |= _gated_shapes(name, model.hidden_size, moe.intermediate_size)
    return shapes


def training_feed_forward(
    model: ModelDescription, index: int, local: str, layer: str, *, tp: int, tp_rank: int
) -> Table:
    """Return the table of one layer's feed-forward part in Megatron, without routed experts.

    Args:
        model: Its sizes.
        index: The layer in the whole model.
        local: Prefix of the local names.
        layer: Prefix of the logical names.
        tp: Tensor-parallel size.
        tp_rank: Tensor-parallel rank.
    """
    moe, hidden = model.moe, model.hidden_size
    if moe is None or index in moe.dense_layers:
        bounds = part_of(model.intermediate_size, tp, tp_rank)
        table = _training_gated(f"{local}mlp.", f"{layer}mlp.", hidden, bounds)
        if model.fused_projections:
            table[f"{local}mlp.linear_fc1.weight"] = _fused_gate_and_up(model, layer, bounds)
        return table
    table = {
        f"{local}mlp.router.weight": whole(f"{layer}mlp.gate.weight", (moe.num_experts, hidden))
    }
    if moe.score_correction_bias:
        name = f"{local}mlp.router.expert_bias"
        table[name] = whole(_correction_bias(layer), (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, tp, tp_rank)
        table |= _training_gated(
            f"{local}mlp.shared_experts.", f"{layer}mlp.shared_experts.", hidden, bounds
        )
    return table


def training_experts(
    model: ModelDescription,
    local: str,
    layer: str,
    storage: ExpertStorage,
    place: tuple[tuple[int, int], tuple[int, int]],
) -> Table:
    """Return the table of one layer's routed experts in Megatron.

    Args:
        model: Its sizes.
        local: Prefix of the local names.
        layer: Prefix of the logical names.
        storage: How Megatron stores them.
        place: Expert-parallel size and rank, expert tensor-parallel size and rank.
    """
    assert model.moe is not None
    (ep, ep_rank), (etp, etp_rank) = place
    experts = range(*part_of(model.moe.num_experts, ep, ep_rank))
    bounds = part_of(model.moe.intermediate_size, etp, etp_rank)
    here = f"{local}mlp.experts."
    if storage == "grouped":
        return _grouped(model, here, layer, experts, bounds)
    table: Table = {}
    for index, expert in enumerate(experts):
        gated = _training_gated("", _expert(layer, expert), model.hidden_size, bounds)
        for name, entry in gated.items():
            if storage == "sequential":
                table[f"{here}local_experts.{index}.{name}"] = entry
            else:
                table[f"{here}{name}{index}"] = entry
    return table


def rollout_feed_forward(
    model: ModelDescription, index: int, layer: str, *, tp: int, tp_rank: int
) -> Table:
    """Return the table of one layer's feed-forward part in vLLM, without routed experts."""
    moe, hidden = model.moe, model.hidden_size
    here = f"{layer}mlp."
    if moe is None or index in moe.dense_layers:
        bounds = part_of(model.intermediate_size, tp, tp_rank)
        table = _rollout_gated(here, hidden, bounds)
        if model.fused_projections:
            table[f"{here}gate_up_proj.weight"] = _fused_gate_and_up(model, layer, bounds)
        return table
    table = {f"{here}gate.weight": whole(f"{here}gate.weight", (moe.num_experts, hidden))}
    if moe.score_correction_bias:
        table[_correction_bias(layer)] = whole(_correction_bias(layer), (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, tp, tp_rank)
        table |= _rollout_gated(f"{here}shared_experts.", hidden, bounds)
    return table


def rollout_experts(
    model: ModelDescription, layer: str, experts: range, bounds: tuple[int, int]
) -> Table:
    """Return the table of one layer's routed experts in vLLM.

    Args:
        model: Its sizes.
        layer: Prefix of the names.
        experts: Those of this rank.
        bounds: The part of the intermediate size that this rank has of each.
    """
    hidden, width = model.hidden_size, bounds[1] - bounds[0]
    w13, w2 = [], []
    for index, expert in enumerate(experts):
        name, here = _expert(layer, expert), (index, index + 1)
        for half, letter in enumerate(_HALVES):
            rows = (half * width, (half + 1) * width)
            w13.append(
                Placement(
                    tensor=f"{name}{letter}_proj.weight",
                    source=(bounds, (0, hidden)),
                    local=(here, rows, (0, hidden)),
                    axes=(1, 2),
                )
            )
        w2.append(
            Placement(
                tensor=f"{name}down_proj.weight",
                source=((0, hidden), bounds),
                local=(here, (0, hidden), (0, width)),
                axes=(1, 2),
            )
        )
    count = len(experts)
    return {
        f"{layer}mlp.experts.w13_weight": LocalTensor(
            shape=(count, 2 * width, hidden), placements=tuple(w13)
        ),
        f"{layer}mlp.experts.w2_weight": LocalTensor(
            shape=(count, hidden, width), placements=tuple(w2)
        ),
    }


def dealt_experts(moe: MoeDescription, ep: int, ep_rank: int) -> range:
    """Return the experts of a rank as vLLM deals them: the first ranks get what is left over."""
    each, left = divmod(moe.num_experts, ep)
    start = ep_rank * each + min(ep_rank, left)
    return range(start, start + each + (ep_rank < left))


def _dense_shapes(model: ModelDescription, layer: str) -> Shapes:
    hidden, width = model.hidden_size, model.intermediate_size
    if not model.fused_projections:
        return _gated_shapes(f"{layer}mlp.", hidden, width)
    return {
        f"{layer}mlp.gate_up_proj.weight": (2 * width, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, width),
    }


def _gated_shapes(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _training_gated(local: str, prefix: str, hidden: int, bounds: tuple[int, int]) -> Table:
    return {
        f"{local}linear_fc1.weight": _gate_and_up(prefix, hidden, bounds),
        f"{local}linear_fc2.weight": columns(f"{prefix}down_proj.weight", hidden, bounds),
    }


def _rollout_gated(prefix: str, hidden: int, bounds: tuple[int, int]) -> Table:
    return {
        f"{prefix}gate_up_proj.weight": _gate_and_up(prefix, hidden, bounds),
        f"{prefix}down_proj.weight": columns(f"{prefix}down_proj.weight", hidden, bounds),
    }


def _gate_and_up(prefix: str, hidden: int, bounds: tuple[int, int]) -> LocalTensor:
    return stack(((f"{prefix}{half}_proj.weight", bounds) for half in _HALVES), tail=(hidden,))


def _fused_gate_and_up(model: ModelDescription, layer: str, bounds: tuple[int, int]) -> LocalTensor:
    """Take rows of the gate and the same of up, which lies below it in one logical tensor."""
    name, width = f"{layer}mlp.gate_up_proj.weight", model.intermediate_size
    below = (width + bounds[0], width + bounds[1])
    return stack([(name, bounds), (name, below)], tail=(model.hidden_size,))


def _grouped(
    model: ModelDescription, here: str, layer: str, experts: range, bounds: tuple[int, int]
) -> Table:
    """Lay the transposed matrices of a rank's experts one behind the other.

    Megatron gives both parameters two dimensions and looks at them as these three.
    """
    hidden, width = model.hidden_size, bounds[1] - bounds[0]
    first, second = [], []
    for index, expert in enumerate(experts):
        name, at = _expert(layer, expert), (index, index + 1)
        for half, letter in enumerate(_HALVES):
            first.append(
                Placement(
                    tensor=f"{name}{letter}_proj.weight",
                    source=(bounds, (0, hidden)),
                    local=(at, (0, hidden), (half * width, (half + 1) * width)),
                    axes=(2, 1),
                )
            )
        second.append(
            Placement(
                tensor=f"{name}down_proj.weight",
                source=((0, hidden), bounds),
                local=(at, (0, width), (0, hidden)),
                axes=(2, 1),
            )
        )
    count = len(experts)
    return {
        f"{here}weight1": LocalTensor(shape=(count, hidden, 2 * width), placements=tuple(first)),
        f"{here}weight2": LocalTensor(shape=(count, width, hidden), placements=tuple(second)),
    }


def _expert(layer: str, expert: int) -> str:
    return f"{layer}mlp.experts.{expert}."


def _correction_bias(layer: str) -> str:
    return f"{layer}mlp.gate.e_score_correction_bias"
