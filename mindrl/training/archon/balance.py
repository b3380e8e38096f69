"""The loss that keeps experts equally busy, over the tokens of a pack or of each of its sequences.

Switch Transformer, arXiv 2101.03961, eq. 4, and DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20: E
times the sum over experts of the share of the choices that fell on one and of its mean probability.

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
    """The tokens among which experts are to be equally busy, and what that counts."""

    of_S: Tensor
    """The span of each of this rank's tokens."""
    sizes_B: Tensor
    """Tokens of each, over all ranks."""
    weight: float
    """Of the pack in the mean over all packs of all replicas."""


@dataclass(kw_only=True)
class Balance:
    """That of one model, and how unequally busy the experts were in the step so far."""

    moe: MoeDescription
    learning: LearningConfig
    parallel: TensorParallel
    context: dist.ProcessGroup | None
    """The ranks that share the tokens of sequences; None for one alone."""
    tokens: dist.ProcessGroup | None
    """Those, and the tensor-parallel ones, which share their tokens once more."""
    replicas: int
    weight: float = 0.0
    """Of a pack in the mean."""
    total: Tensor | float = 0.0
    """This rank's part of the mean, the sum over layers."""

    def begin(self, packs: int) -> None:
        """Begin a step with so many packs of this replica, idle ones apart."""
        self.weight, self.total = 1 / (packs * self.replicas), 0.0

    def spans(self, pack: Pack[Any]) -> Spans | None:
        """Say what the layers are to balance over in a pack; nothing where nobody learns."""
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
        """Attach the loss to the weights of the chosen experts, which come back as they are.

        A collective over the ranks that share the tokens.
        """
        of_S, sizes_B, weight = spans
        shape = len(sizes_B), self.moe.num_experts
        places = (of_S[:, None] * shape[1] + ids_SK).flatten()
        counts_BE = torch.bincount(places, minlength=shape[0] * shape[1]).view(shape)
        if self.tokens is not None:
            dist.all_reduce(counts_BE, group=self.tokens)
        shares_BE = counts_BE / (sizes_B[:, None] * ids_SK.size(1))
        # Of this rank's tokens: the ranks' losses add up to that of all.
        sums_BE = probs_SE.new_zeros(shape).index_add(0, of_S, probs_SE)
        means_BE = sums_BE / sizes_B[:, None]
        loss = weight * shape[1] * (shares_BE * means_BE).sum(1).mean()
        attached: Tensor = _Attached.apply(weights_SK, loss, self)  # type: ignore[no-untyped-call]
        return attached

    def metrics(self, layers: int) -> dict[str, float]:
        """Return the mean over so many layers, packs and replicas. A collective over all ranks."""
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
        # Counted here, for a layer that is computed again goes forward twice.
        (loss,) = ctx.saved_tensors
        ctx.balance.total += loss
        coefficient = ctx.balance.learning.moe_aux_loss_coeff
        return gradient, torch.full_like(loss, coefficient), None
