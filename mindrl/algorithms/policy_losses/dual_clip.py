"""The clipped ratio, with a bound for negative advantages."""

from dataclasses import dataclass

import torch

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms
from mindrl.algorithms.policy_losses.clipped import ClipOptions, clipped_terms


@dataclass(frozen=True, kw_only=True, slots=True)
class DualClipOptions(ClipOptions):
    """Bounds of the ratio, with a second one for negative advantages."""

    dual_clip_ratio: float
    """Maximum of the ratio for negative advantages; above 1."""


def dual_clip(chosen: ChosenTokens, options: DualClipOptions) -> Terms:
    """Clip, and limit the loss of a negative advantage to -c * A: arXiv 1912.09729."""
    terms, gain_BT = clipped_terms(chosen, chosen.ratio(), options), chosen.advantages_BT
    most_BT = -options.dual_clip_ratio * gain_BT
    is_beyond_BT = (gain_BT < 0) & (terms["policy_loss"] > most_BT)
    loss_BT = torch.where(is_beyond_BT, most_BT, terms["policy_loss"])
    return {
        **terms,
        "policy_loss": loss_BT,
        "clip_fraction": terms["clip_fraction"] | is_beyond_BT,
    }
