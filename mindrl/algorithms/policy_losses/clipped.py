"""The clipped ratio of PPO, and its bounds.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipOptions:
    """Bounds of the ratio to the old policy."""

    clip_ratio: float
    """Distance below and above 1."""
    clip_ratio_low: float | None = None
    """Distance below 1; None uses `clip_ratio`."""
    clip_ratio_high: float | None = None
    """Distance above 1; None uses `clip_ratio`."""

    @property
    def low(self) -> float:
        """Distance below 1."""
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def high(self) -> float:
        """Distance above 1."""
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high

    def clipped(self, ratio_BT: Tensor) -> Tensor:
        """Return a ratio clipped to its bounds."""
        return ratio_BT.clamp(1 - self.low, 1 + self.high)


def clipped(chosen: ChosenTokens, options: ClipOptions) -> Terms:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A): PPO (arXiv 1707.06347) eq. 7.

    DAPO (arXiv 2503.14476) uses two different bounds. A token counts as clipped if the clipped
    branch is the smaller one, so that it has no gradient.
    """
    return clipped_terms(chosen, chosen.ratio(), options)


def clipped_terms(chosen: ChosenTokens, ratio_BT: Tensor, options: ClipOptions) -> Terms:
    """Return the terms of the clipped loss for a ratio."""
    free_BT = ratio_BT * chosen.advantages_BT
    limited_BT = options.clipped(ratio_BT) * chosen.advantages_BT
    return {
        "policy_loss": -torch.minimum(free_BT, limited_BT),
        "clip_fraction": limited_BT < free_BT,
        "ratio": ratio_BT,
    }
