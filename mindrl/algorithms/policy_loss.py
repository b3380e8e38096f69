"""The clipped surrogate objective of PPO and of the algorithms built on it.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.algorithms.log_ratio import log_ratio


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyLoss:
    """The loss of each token, and what a person wants to know about it."""

    token_loss_BT: Tensor
    """To be minimised; carries the gradient."""
    clipped_BT: Tensor
    """Bool: where the clipped branch is the smaller one, so the token has no gradient."""
    ratio_BT: Tensor
    """Probability under the policy over that under the old policy; carries the gradient."""


def clipped_policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """Return -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) for each token.

    PPO (arXiv 1707.06347) eq. 7, where clip_low = clip_high; DAPO (arXiv 2503.14476) sets
    them apart. The ratio lies within e^-20 and e^20 (see `log_ratio`).
    """
    ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT).exp()
    free_BT = ratio_BT * advantages_BT
    limited_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    return PolicyLoss(
        token_loss_BT=-torch.minimum(free_BT, limited_BT),
        clipped_BT=limited_BT < free_BT,
        ratio_BT=ratio_BT,
    )
