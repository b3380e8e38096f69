"""Expert load balancing over packs, and within each sequence of a pack.

Megatron's loss is a mean over all passes; here idle packs do not count. Megatron also treats a pack
as one sequence. DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20. Per sequence: E times the sum over
experts of (share of the sequence's choices) * (mean probability). The loss is the mean over
sequences.

Shapes: S tokens of this rank, B sequences of the pack, E experts.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor, nn

from mindrl.training.megatron.passes import PackedSequences


def balance_packs(network: nn.Module) -> None:
    """Make the routers of a network see packs: which are idle, and with seq_aux_loss sequences."""
    for layer in network.modules():
        if isinstance(layer, TransformerLayer) and isinstance(layer.mlp, MoELayer):
            router = layer.mlp.router
            balance = _PackBalance(router)
            # Before every layer call: a layer recomputed in the backward pass has its own pack
            # again.
            layer.register_forward_pre_hook(balance.take_pack, with_kwargs=True)
            if router.config.moe_router_load_balancing_type == "seq_aux_loss":
                router._apply_seq_aux_loss = balance.apply
            router.attach_and_log_load_balancing_loss = balance.attach


class _PackBalance:
    """Weights the balance loss of one router, and replaces that of sequences."""

    def __init__(self, router: TopKRouter) -> None:
        self.router = router
        self.attach_whole = router.attach_and_log_load_balancing_loss
        self.pack: PackedSequences | None = None

    def take_pack(self, _: nn.Module, __: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Remember the pack that the layer is about to read."""
        self.pack = named["packed_seq_params"]

    def attach(
        self, probs: Tensor, coefficient: float, loss: Tensor, *given: Any, **named: Any
    ) -> Tensor:
        """Attach and log the loss with the weight of the pack."""
        assert self.pack is not None, "the layer was called"
        weighted = loss * self.pack.balance_weight
        attached: Tensor = self.attach_whole(probs, coefficient, weighted, *given, **named)
        return attached

    def apply(
        self, probs: Tensor, scores_SE: Tensor, chosen_SE: Tensor, *_: object, **__: object
    ) -> Tensor:
        """Attach the loss to the router's probabilities. A collective if ranks share tokens."""
        config, row_S, sizes_B = self.router.config, *self._rows(scores_SE)
        shape = len(sizes_B), config.num_moe_experts
        zeros_BE = torch.zeros(shape, dtype=scores_SE.dtype, device=scores_SE.device)
        counts_BE = zeros_BE.index_add(0, row_S, chosen_SE.to(scores_SE.dtype))
        if self.router.tp_cp_group.size() > 1:
            dist.all_reduce(counts_BE, group=self.router.tp_cp_group)
        shares_BE = counts_BE / (sizes_B[:, None] * config.moe_router_topk)
        # Over this rank's tokens only: the ranks' losses sum to the total.
        means_BE = zeros_BE.index_add(0, row_S, scores_SE) / sizes_B[:, None]
        coefficient = config.moe_aux_loss_coeff
        loss = coefficient * config.num_moe_experts * (shares_BE * means_BE).sum(1).mean()
        group = self.router.tp_cp_group
        return self.attach(probs, coefficient, loss, "load_balancing_loss", group)

    def _rows(self, scores_SE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequence of each of this rank's tokens, and the length of each sequence."""
        pack = self.pack
        assert pack is not None, "the layer was called"
        assert pack.packing is not None
        bounds = torch.tensor(pack.packing.starts, device=scores_SE.device)
        place_S = torch.arange(pack.packing.starts[-1], device=scores_SE.device)
        if pack.gathered is not None:
            ranks = parallel_state.get_context_parallel_world_size()
            place_S = pack.gathered.view(ranks, -1)[parallel_state.get_context_parallel_rank()]
        if self.router.config.sequence_parallel:
            ranks = parallel_state.get_tensor_model_parallel_world_size()
            place_S = place_S.view(ranks, -1)[parallel_state.get_tensor_model_parallel_rank()]
        assert len(place_S) == len(scores_SE), "each token is on one rank"
        return torch.bucketize(place_S, bounds[1:], right=True), bounds.diff()
