"""Inputs and results of a policy loss for each token.

Shapes: B sequences, T positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mindrl.algorithms.kl import log_ratio
from mindrl.algorithms.losses import Total, of_one_rank
from mindrl.batch.experience import Experience

Terms = Mapping[str, Tensor]
"""Values of each token: `policy_loss`, and metrics such as `clip_fraction` and `ratio`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChosenTokens:
    """This rank's tokens of a micro-batch, each sampled by the old policy."""

    logprobs_BT: Tensor
    """Log-probs of the trained policy, with gradient, nats; 0 without a token."""
    old_logprobs_BT: Tensor
    """Log-probs of the policy at the start of the update."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """bool; this rank's response tokens."""
    total: Total = of_one_rank
    picked_BT: Tensor | None = None
    """bool; tokens that the loss selected before the update. None if it selects none."""

    def ratio(self) -> Tensor:
        """Return the ratio of each token to the old policy, clamped to e^-20 and e^20, [B, T]."""
        return log_ratio(self.logprobs_BT, self.old_logprobs_BT).exp()

    def sequence_mean(self, values_BT: Tensor) -> Tensor:
        """Return the mean over each sequence's tokens on all ranks, [B]; without gradient."""
        values_BT = values_BT.detach().masked_fill(~self.mask_BT, 0.0)
        tokens_B = self.total(self.mask_BT.sum(dim=1).to(values_BT.dtype))
        return self.total(values_BT.sum(dim=1)) / tokens_B.clamp(min=1)


class TokenSelection(ABC):
    """Options of a policy loss that selects tokens of a whole update before it."""

    @abstractmethod
    def select(self, update: Experience, old_logprobs_BT: Tensor, seed: int) -> Tensor:
        """Return which tokens are selected, bool [B, T]; `seed` depends on the run and the update.

        `ChosenTokens.picked_BT` is this rank's part of it.
        """


def unit_ratio(values_BT: Tensor) -> Tensor:
    """Return 1, with the gradient of exp(value) / exp(value) with a constant denominator."""
    return (values_BT - values_BT.detach()).exp()
