"""The loss of PPO's critic.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

import torch

from mindrl.algorithms.losses import LossInputs, LossTerms, weighted_sums
from mindrl.batch.experience import CriticMinibatch


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueLoss:
    """The larger half squared error: of the value, or of the value clipped near the old one.

    The clipped value loss of PPO's reference implementation (github.com/openai/baselines, ppo2), as
    in MindSpeed-RL, verl and TRL. The larger error counts, so a value beyond the range has no
    gradient, unless it moved away from its return.
    """

    clip_range: float
    """In units of reward: the clipped value is within the old value -/+ clip_range."""

    def __call__(self, inputs: LossInputs[CriticMinibatch]) -> LossTerms:
        """Return sum(weights * 0.5 * max((v - return)^2, (clipped v - return)^2)) and its terms.

        Values with weight 0 are ignored, even NaN.

        Raises:
            ValueError: if shapes differ.
        """
        batch = inputs.batch
        values_BT = inputs.used("values_BT", inputs.outputs[0])
        old_BT = inputs.used("old_values_BT", batch.old_values_BT)
        returns_BT = inputs.used("returns_BT", batch.returns_BT)
        # Adding a clipped difference to the old value would round values inside the range too.
        near_BT = values_BT.clamp(old_BT - self.clip_range, old_BT + self.clip_range)
        free_BT = (values_BT - returns_BT).square()
        limited_BT = (near_BT - returns_BT).square()
        terms_BT = {
            "value_loss": 0.5 * torch.maximum(free_BT, limited_BT),
            "clip_fraction": limited_BT > free_BT,
            "value": values_BT,
        }
        sums = weighted_sums(terms_BT, inputs.weights_BT)
        loss = sums["value_loss"]
        return LossTerms.of(loss, inputs.means(sums) | {"value_loss": loss})
