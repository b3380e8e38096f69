"""The clipped ratio, without the gradient of a few tokens of large covariance.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

from torch import Tensor

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms, TokenSelection
from mindrl.algorithms.covariance import covariances, some_between
from mindrl.algorithms.policy_losses.clipped import ClipOptions, clipped_terms
from mindrl.batch.experience import Experience


@dataclass(frozen=True, kw_only=True)
class ClipCovOptions(ClipOptions, TokenSelection):
    """Bounds of the ratio, and the tokens without a gradient."""

    clip_cov_ratio: float
    """Fraction of an update's tokens, at least one token."""
    clip_cov_lb: float
    """Minimum of their covariance, in nats times advantage."""
    clip_cov_ub: float
    """Maximum of their covariance."""

    def select(self, update: Experience, old_logprobs_BT: Tensor, seed: int) -> Tensor:
        """Select tokens at random from those within the bounds."""
        mask_BT = update.response_mask_BT
        values_BT = covariances(old_logprobs_BT, update.advantages_BT, mask_BT)
        bounds = (self.clip_cov_lb, self.clip_cov_ub)
        return some_between(values_BT, mask_BT, bounds, self.clip_cov_ratio, seed)


def clip_cov(chosen: ChosenTokens, options: ClipCovOptions) -> Terms:
    """Clip, and drop the gradient of the selected tokens: arXiv 2505.22617, eq. 12."""
    assert chosen.picked_BT is not None, "the trainer provides them"
    terms = clipped_terms(chosen, chosen.ratio(), options)
    return {
        **terms,
        "policy_loss": terms["policy_loss"].masked_fill(chosen.picked_BT, 0.0),
        "clip_fraction": terms["clip_fraction"] | chosen.picked_BT,
    }
