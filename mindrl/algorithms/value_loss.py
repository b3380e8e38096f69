"""The loss of PPO's critic: clipped squared error.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.algorithms.loss_terms import LossTerms, used, weighted_sums
from mindrl.batch.experience import CriticMinibatch


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueLoss:
    """Half the squared error of the value, or of the value kept near the old one: the larger.

    The clipped value loss of PPO's own implementation (github.com/openai/baselines, ppo2), as in
    MindSpeed-RL, verl and TRL. The larger error counts, so a value that has gone further than the
    range has no gradient, unless it went away from its return.
    """

    clip_range: float
    """In units of reward: the clipped value lies within the old value -/+ clip_range."""

    def __call__(
        self,
        *,
        values_BT: Tensor,
        old_values_BT: Tensor,
        returns_BT: Tensor,
        token_weights_BT: Tensor,
    ) -> LossTerms:
        """Return sum(weights * 0.5 * max((v - return)^2, (clipped v - return)^2)) and its terms.

        All tensors are [B, T]; `values_BT` carries the gradient. Where a weight is 0 the other
        tensors may hold anything, NaN included.

        Raises:
            ValueError: if shapes differ.
        """
        weights_BT = token_weights_BT
        values_BT = used("values_BT", values_BT, weights_BT)
        old_BT = used("old_values_BT", old_values_BT, weights_BT)
        returns_BT = used("returns_BT", returns_BT, weights_BT)
        # Not the old value plus a clipped difference, which would be rounded inside the range too.
        near_BT = values_BT.clamp(old_BT - self.clip_range, old_BT + self.clip_range)
        free_BT = (values_BT - returns_BT).square()
        limited_BT = (near_BT - returns_BT).square()
        terms_BT = {
            "value_loss": 0.5 * torch.maximum(free_BT, limited_BT),
            "clip_fraction": limited_BT > free_BT,
            "value": values_BT,
        }
        sums = weighted_sums(terms_BT, weights_BT)
        return LossTerms.of(sums["value_loss"], sums)

    def of_minibatch(
        self, read: tuple[Tensor, ...], minibatch: CriticMinibatch, own_BT: Tensor
    ) -> LossTerms:
        """Return what a rank's tokens of a micro-batch, on the host, add to the loss.

        `read` are values, with gradient; `own_BT` is 1 for the tokens of this rank, 0 elsewhere.
        """
        (values_BT,) = read
        device = own_BT.device
        return self(
            values_BT=values_BT,
            old_values_BT=minibatch.old_values_BT.to(device),
            returns_BT=minibatch.returns_BT.to(device),
            token_weights_BT=minibatch.token_weights_BT.to(device) * own_BT,
        )
