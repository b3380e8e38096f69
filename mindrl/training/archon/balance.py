"""Load-balancing loss of experts, over the tokens of a pack or of each of its sequences.

Switch Transformer, arXiv 2101.03961, eq. 4, and DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20: E
times the sum over experts of (share of the choices) * (mean probability).

Shapes: S tokens of this rank, B spans, K experts of a token, E experts.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.config.role import LearningConfig
from mindrl.models.description import MoeDescription
from mindrl.training.archon.tensor import TensorParallel
from mindrl.training.packs import Pack


class Spans(NamedTuple):
    """Spans of tokens that experts are balanced over, and the pack's weight in the loss."""

    of_S: Tensor
    """Span of each of this rank's tokens."""
    sizes_B: Tensor
    """Tokens of each span, over all ranks."""
    weight: float
    """Weight of the pack in the mean over all packs of all replicas."""


@dataclass(kw_only=True)
class Balance:
    """Balance loss of one model, and its total over the current step."""

    moe: MoeDescription
    learning: LearningConfig
    parallel: TensorParallel
    context: dist.ProcessGroup | None
    """Ranks that share the tokens of sequences; None for a single rank."""
    tokens: dist.ProcessGroup | None
    """Ranks of `context`, and the tensor-parallel ranks that share their tokens under sequence
    parallelism."""
    replicas: int
    weight: float = 0.0
    """Weight of a pack in the mean."""
    total: Tensor | float = 0.0
    """This rank's part of the mean, summed over layers."""

    def begin(self, packs: int) -> None:
        """Start a step with `packs` packs on this replica, idle ones not counted."""
        self.weight, self.total = 1 / (packs * self.replicas), 0.0

    def spans(self, pack: Pack[Any]) -> Spans | None:
        """Return the spans of a pack to balance over; None if no gradient is computed."""
        if not torch.is_grad_enabled():
            return None
        starts = pack.packing.starts
        if self.learning.moe_router_load_balancing_type == "aux_loss":
            starts = (0, starts[-1])
        place_S = torch.arange(starts[-1])
        if pack.gathered is not None and self.context is not None:
            place_S = pack.gathered.view(self.context.size(), -1)[self.context.rank()]
        if self.parallel.is_cut:
            place_S = place_S.view(self.parallel.size, -1)[self.parallel.rank]
        device = pack.tokens_1S.device
        bounds = torch.tensor(starts, device=device)
        of_S = torch.bucketize(place_S.to(device), bounds[1:], right=True)
        return Spans(of_S, bounds.diff(), 0.0 if pack.is_idle else self.weight)

    def attached(
        self, weights_SK: Tensor, probs_SE: Tensor, ids_SK: Tensor, spans: Spans
    ) -> Tensor:
        """Return the chosen experts' weights unchanged; attach the loss to their backward pass.

        A collective over the ranks that share the tokens.
        """
        of_S, sizes_B, weight = spans
        shape = len(sizes_B), self.moe.num_experts
        places = (of_S[:, None] * shape[1] + ids_SK).flatten()
        counts_BE = torch.bincount(places, minlength=shape[0] * shape[1]).view(shape)
        if self.tokens is not None:
            dist.all_reduce(counts_BE, group=self.tokens)
        shares_BE = counts_BE / (sizes_B[:, None] * ids_SK.size(1))
        # Over this rank's tokens only: the ranks' losses sum to the total.
        sums_BE = probs_SE.new_zeros(shape).index_add(0, of_S, probs_SE)
        means_BE = sums_BE / sizes_B[:, None]
        loss = weight * shape[1] * (shares_BE * means_BE).sum(1).mean()
        attached: Tensor = _Attached.apply(weights_SK, loss, self)  # type: ignore[no-untyped-call]
        return attached

    def metrics(self, layers: int) -> dict[str, float]:
        """Return the mean over layers, packs and replicas. A collective over all ranks."""
        total = torch.as_tensor(self.total, device=self.parallel.mesh.device_type)
        dist.all_reduce(total)
        return {"moe_aux_loss": float(total) / layers}


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, loss: Tensor, balance: Balance) -> Tensor:
        ctx.balance = balance
        ctx.save_for_backward(loss)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        # Counted here, because a recomputed layer runs forward twice.
        (loss,) = ctx.saved_tensors
        ctx.balance.total += loss
        coefficient = ctx.balance.learning.moe_aux_loss_coeff
        return gradient, torch.full_like(loss, coefficient), None
