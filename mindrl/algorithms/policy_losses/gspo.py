"""The clipped ratio of whole sequences."""

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms, unit_ratio
from mindrl.algorithms.kl import MAX_LOG_RATIO
from mindrl.algorithms.policy_losses.clipped import ClipOptions, clipped_terms


def gspo(chosen: ChosenTokens, options: ClipOptions) -> Terms:
    """Clip the sequence's ratio, the geometric mean of its tokens' ratios: GSPO (arXiv 2507.18071).

    Per token, like its GSPO-token: the ratio has the value of the sequence's and the gradient of
    the token's, so with equal weights in a sequence the gradient is the same.
    """
    log_BT = chosen.logprobs_BT - chosen.old_logprobs_BT
    log_B = chosen.sequence_mean(log_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_BT = log_B.exp()[:, None] * unit_ratio(chosen.logprobs_BT)
    return clipped_terms(chosen, ratio_BT, options)
