"""Routers of Megatron-core that take their experts from the routes of a pack.

Megatron's own `RouterReplay` is a list of all routers of a process, whichever model they are of,
and needs another action for recomputed layers. Here each router reads the pack of the call, which a
recomputed layer gets again. Shapes: S tokens of this rank, E experts, K experts of a token.
"""

from collections.abc import Callable, Iterable
from typing import Any

from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor, nn

from mindrl.training.pack_routes import PackRoutes


def follow_routes(chunks: Iterable[nn.Module]) -> list[int]:
    """Connect the routers of this rank's chunks, in order; return their layers, from 0."""
    layers = [
        layer
        for chunk in chunks
        for layer in chunk.modules()
        if isinstance(layer, TransformerLayer) and isinstance(layer.mlp, MoELayer)
    ]
    for index, layer in enumerate(layers):
        choice = _Choice(index)
        layer.register_forward_pre_hook(choice.take_pack, with_kwargs=True)
        layer.mlp.router.router_replay = choice
    return [layer.layer_number - 1 for layer in layers]


class _Choice:
    """Chooses the experts of one layer; has the one method of `RouterReplay` that routers call."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.routes: PackRoutes | None = None

    def take_pack(self, _: nn.Module, __: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Remember the routes of the pack that the layer is about to read."""
        self.routes = named["packed_seq_params"].routes

    def get_replay_topk(
        self,
        scores_SE: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Return scores and numbers of the experts of each token, [S, K]."""
        found_SK, own_SK = default_compute_topk(
            scores_SE, topk, num_groups=num_groups, group_topk=group_topk
        )
        if self.routes is None:
            return found_SK, own_SK
        used_SK = self.routes.chosen(self.layer, own_SK)
        return scores_SE.gather(1, used_SK), used_SK
