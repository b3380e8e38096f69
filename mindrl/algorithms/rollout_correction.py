"""Importance weights: what makes up for tokens that were drawn with other probabilities.

The engine that draws tokens has the trainer's weights and not its arithmetic. What a token counts
for, its advantage, is multiplied by the probability that the policy of the update gives it over
that which it was drawn with: truncated, "Your efficient RL framework secretly brings you
off-policy RL training" (F. Yao et al. 2025); masked, IcePop (arXiv 2510.18855). Beside the ratio
that the loss itself clips this makes the decoupled loss of arXiv 2110.00641: drawn by one policy,
kept near a second, taught to a third.

Shapes: B sequences, T positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mindrl.algorithms.kl import MAX_LOG_RATIO
from mindrl.algorithms.policy_losses import Total, of_one_rank
from mindrl.config.rl import RolloutCorrection


class Corrected(NamedTuple):
    """Weights of the tokens that a rank has, and what became of them."""

    weights_BT: Tensor
    """0 outside the mask; no gradient."""
    beyond_BT: Tensor
    """bool; tokens whose ratio lay beyond a bound."""
    rejected_B: Tensor
    """bool; responses that are left out, which all their tokens are weighed 0 for."""


def corrected(
    options: RolloutCorrection,
    log_BT: Tensor,
    mask_BT: Tensor,
    total: Total = of_one_rank,
) -> Corrected:
    """Weigh tokens of the mask, bool, by the `log_ratio` of the trainer to the engine.

    `total` adds over the ranks that share a response.
    """
    log_BT = log_BT.masked_fill(~mask_BT, 0.0)
    log_B = torch.zeros_like(log_BT[:, 0])
    rejects = options.reject_below is not None or options.reject_above is not None
    if rejects or options.level == "sequence":
        log_B = total(log_BT.sum(dim=1))
    ratio_BT = torch.ones_like(log_BT)
    if options.level == "token":
        ratio_BT = log_BT.exp()
    if options.level == "sequence":
        spread_BT = log_B.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)[:, None].expand_as(log_BT)
        ratio_BT = spread_BT.exp()
    beyond_BT = ratio_BT > options.max_weight
    if options.beyond == "mask":
        beyond_BT |= ratio_BT < options.min_weight
        ratio_BT = ratio_BT.masked_fill(beyond_BT, 0.0)
    rejected_B = torch.zeros_like(log_B, dtype=torch.bool)
    if rejects:
        tokens_B = total(mask_BT.sum(dim=1).to(log_B.dtype))
        mean_B = (log_B / tokens_B.clamp(min=1)).exp()
        rejected_B = (mean_B < (options.reject_below or 0.0)) | (
            mean_B > (options.reject_above or torch.inf)
        )
    left_out_BT = ~mask_BT | rejected_B[:, None]
    weights_BT = ratio_BT.clamp(max=options.max_weight).masked_fill(left_out_BT, 0.0)
    return Corrected(weights_BT, beyond_BT & mask_BT, rejected_B)
