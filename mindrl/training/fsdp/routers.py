"""Routers of transformers' mixtures that take their experts from the routes of a pack.

Shapes: S tokens of the pack, E experts, K experts of a token.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mindrl.models.decoder import layer_of
from mindrl.models.description import MoeDescription

_Routed = tuple[Tensor, Tensor, Tensor]
"""Logits [S, E], and the weights and numbers of each token's experts, [S, K]."""


def follow_packs(network: nn.Module, moe: MoeDescription) -> list[int]:
    """Connect the routers of a network to the packs of its passes; return their layers, from 0."""
    layers: list[int] = []
    for name, module in network.named_modules():
        if type(module).__name__.endswith("TopKRouter"):
            found = layer_of(name)
            assert found is not None, f"{name} is in no layer"
            module.forward = partial(_route, module, module.forward, moe, len(layers))
            layers.append(found)
    return layers


def _route(module: Any, forward: Any, moe: MoeDescription, layer: int, hidden: Tensor) -> _Routed:
    logits_SE, weights_SK, own_SK = forward(hidden)
    routes = module.mindrl_pass.pack.routes
    if routes is None:
        return logits_SE, weights_SK, own_SK
    used_SK = routes.chosen(layer, own_SK)
    used_weights_SK = logits_SE.float().softmax(-1).gather(-1, used_SK)
    if moe.norm_topk_prob:
        used_weights_SK = used_weights_SK / used_weights_SK.sum(-1, keepdim=True)
    return logits_SE, used_weights_SK.to(weights_SK.dtype), used_SK
