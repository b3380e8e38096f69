"""Feed-forward weights as Megatron-core holds them.

Megatron fuses gate and up, each cut by rank first. It keeps each expert apart (SequentialMLP),
apart under other names (TEGroupedMLP), or all of a rank in two matrices that are transposed
(GroupedMLP); experts are dealt whole to the expert-parallel ranks and cut by the expert
tensor-parallel size. Imports no torch.
"""

from typing import Literal

from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import (
    correction_bias,
    expert_prefix,
    gate_and_up,
    stacked_experts,
)
from mindrl.models.placement import (
    Bounds,
    LocalTensor,
    columns,
    part_of,
    stack,
    whole,
)

ExpertStorage = Literal["sequential", "te_grouped", "grouped"]
"""How the experts of a rank are stored, by the names of Megatron's classes."""
_Table = dict[str, LocalTensor]


def feed_forward_table(
    model: ModelDescription, index: int, local: str, layer: str, *, tp: int, tp_rank: int
) -> _Table:
    """Return the table of one layer's feed-forward part, without routed experts.

    Args:
        model: Its sizes.
        index: The layer in the whole model.
        local: Prefix of the local names.
        layer: Prefix of the logical names.
        tp: Tensor-parallel size.
        tp_rank: Tensor-parallel rank.
    """
    moe, here, there = model.moe, f"{local}mlp.", f"{layer}mlp."
    if moe is None or index in moe.dense_layers:
        return _gated(model, here, there, part_of(model.intermediate_size, tp, tp_rank))
    shape = (moe.num_experts, model.hidden_size)
    table = {f"{here}router.weight": whole(f"{there}gate.weight", shape)}
    if moe.score_correction_bias:
        table[f"{here}router.expert_bias"] = whole(correction_bias(layer), (moe.num_experts,))
    if moe.shared_intermediate_size:
        bounds = part_of(moe.shared_intermediate_size, tp, tp_rank)
        table |= _gated(model, f"{here}shared_experts.", f"{there}shared_experts.", bounds)
    return table


def experts_table(
    model: ModelDescription,
    local: str,
    layer: str,
    storage: ExpertStorage,
    place: tuple[tuple[int, int], tuple[int, int]],
) -> _Table:
    """Return the table of one layer's routed experts.

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
        # Megatron gives both parameters two dimensions and looks at them as these three.
        first, second = stacked_experts(model, layer, experts, bounds, transposed=True)
        return {f"{here}weight1": first, f"{here}weight2": second}
    table: _Table = {}
    for index, expert in enumerate(experts):
        for name, entry in _gated(model, "", expert_prefix(layer, expert), bounds).items():
            if storage == "sequential":
                table[f"{here}local_experts.{index}.{name}"] = entry
            else:
                table[f"{here}{name}{index}"] = entry
    return table


def _gated(model: ModelDescription, local: str, prefix: str, bounds: Bounds) -> _Table:
    hidden = model.hidden_size
    return {
        f"{local}linear_fc1.weight": stack(gate_and_up(model, prefix, bounds), tail=(hidden,)),
        f"{local}linear_fc2.weight": columns(f"{prefix}down_proj.weight", hidden, bounds),
    }
