"""The geometric mean of the clipped ratios of a sequence."""

import torch

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms, unit_ratio
from mindrl.algorithms.kl import log_ratio
from mindrl.algorithms.policy_losses.clipped import ClipOptions


def gmpo(chosen: ChosenTokens, options: ClipOptions) -> Terms:
    """Weight A by the geometric mean of the clipped ratios: GMPO (arXiv 2507.20673).

    Each logarithm is clipped, to -low and high, on the side to which the advantage pushes it. Value
    and gradient are those of the sequence, per token as in `gspo`.
    """
    sign_BT = chosen.advantages_BT.sign()
    log_BT = log_ratio(chosen.logprobs_BT, chosen.old_logprobs_BT)
    limited_BT = log_BT.clamp(-options.low, options.high)
    kept_BT = sign_BT * torch.minimum(sign_BT * log_BT, sign_BT * limited_BT)
    mean_B = chosen.sequence_mean(kept_BT)
    ratio_BT = mean_B.exp()[:, None] * unit_ratio(kept_BT)
    return {
        "policy_loss": -ratio_BT * chosen.advantages_BT,
        "clip_fraction": sign_BT * limited_BT < sign_BT * log_BT,
        "ratio": ratio_BT,
    }
