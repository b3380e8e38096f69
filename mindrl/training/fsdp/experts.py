"""Mixtures of experts in networks of transformers: two stacks in each layer, one expert per row.

The files have each expert's matrices one by one. The engine's tables have them in stacks of the
same order as transformers' (`training/archon/sharding.py`), under names of their own.
"""

from collections.abc import Iterator

from torch import nn

from mindrl.models.decoder import Head, is_of_experts, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.feed_forward import stacked_experts
from mindrl.models.placement import Shape

_STACKS = {
    "mlp.experts.gate_up_proj": "mlp.experts.gate_up",
    "mlp.experts.down_proj": "mlp.experts.down",
}
"""Names in the engine's tables of transformers' stacks."""


def stack_name(name: str) -> str:
    """Return the name in the engine's tables of a parameter of transformers."""
    for theirs, ours in _STACKS.items():
        if name.endswith(theirs):
            return name.removesuffix(theirs) + ours
    return name


def stacked_shapes(model: ModelDescription, head: Head) -> dict[str, Shape]:
    """Return the shape of each tensor of a model with stacked experts."""
    shapes = logical_shapes(model, head=head)
    if model.moe is None:
        return shapes
    found = {name: shape for name, shape in shapes.items() if not is_of_experts(name)}
    all_experts, width = range(model.moe.num_experts), (0, model.moe.intermediate_size)
    for index in range(model.num_hidden_layers):
        if index not in model.moe.dense_layers:
            layer = f"model.layers.{index}."
            stacks = stacked_experts(model, layer, all_experts, width, transposed=False)
            for name, stack in zip(_STACKS.values(), stacks, strict=True):
                found[layer + name] = stack.shape
    return found


def experts_of_layers(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the module of the routed experts of each layer that has some."""
    return (each for name, each in network.named_modules() if name.endswith(".mlp.experts"))
