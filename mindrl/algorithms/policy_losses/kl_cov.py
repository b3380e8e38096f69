"""A penalty on the tokens of the largest covariance.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

from torch import Tensor

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms, TokenSelection
from mindrl.algorithms.covariance import covariances, highest
from mindrl.algorithms.kl import log_ratio
from mindrl.batch.experience import Experience


@dataclass(frozen=True, kw_only=True)
class KlCovOptions(TokenSelection):
    """The tokens with a penalty, and its weight."""

    kl_cov_ratio: float
    """Fraction of an update's tokens, at least one token."""
    kl_cov_coef: float
    """Coefficient of the penalty, which keeps them near the old policy."""

    def select(self, update: Experience, old_logprobs_BT: Tensor, seed: int) -> Tensor:  # noqa: ARG002 - the same every time
        """Select the tokens of the largest covariance."""
        mask_BT = update.response_mask_BT
        values_BT = covariances(old_logprobs_BT, update.advantages_BT, mask_BT)
        return highest(values_BT, mask_BT, self.kl_cov_ratio)


def kl_cov(chosen: ChosenTokens, options: KlCovOptions) -> Terms:
    """-ratio * A, with a penalty on the selected tokens: arXiv 2505.22617, eq. 14.

    The penalty is the absolute logarithm of their ratio to the old policy.
    """
    assert chosen.picked_BT is not None, "the trainer provides them"
    log_BT = log_ratio(chosen.logprobs_BT, chosen.old_logprobs_BT)
    ratio_BT = log_BT.exp()
    held_BT = options.kl_cov_coef * log_BT.abs().masked_fill(~chosen.picked_BT, 0.0)
    return {"policy_loss": held_BT - ratio_BT * chosen.advantages_BT, "ratio": ratio_BT}
