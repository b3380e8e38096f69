"""Importance weights that correct for an engine with different token probabilities.

The engine has the trainer's weights, but not its arithmetic. The advantage of a token is multiplied
by the probability that the policy of the update gives it, divided by the one it was sampled with:
truncated, "Your efficient RL framework secretly brings you off-policy RL training" (F. Yao et al.
2025); masked, IcePop (arXiv 2510.18855). Together with the ratio that the loss clips this is the
decoupled loss of arXiv 2110.00641: one policy samples, a second one is the proximal policy, a third
one is trained.

Shapes: B sequences, T positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mindrl.algorithms.kl import MAX_LOG_RATIO
from mindrl.algorithms.losses import Total, of_one_rank
from mindrl.config.rl import RolloutCorrection


class Corrected(NamedTuple):
    """Weights of this rank's tokens, and which of them are out of bounds."""

    weights_BT: Tensor
    """0 outside the mask; no gradient."""
    beyond_BT: Tensor
    """bool; tokens whose ratio is out of bounds."""
    rejected_B: Tensor
    """bool; rejected responses, all of whose tokens have weight 0."""


def corrected(
    options: RolloutCorrection,
    log_BT: Tensor,
    mask_BT: Tensor,
    total: Total = of_one_rank,
) -> Corrected:
    """Return weights for tokens in the mask, bool, from the trainer/engine `log_ratio`.

    `total` sums over the ranks that share a response.
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
