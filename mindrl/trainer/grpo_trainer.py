"""GRPO: advantages within the group of responses to one prompt.

Shapes: B sequences of a step, T positions.
"""

from collections.abc import Callable

import torch

from mindrl.algorithms.advantages import group_normalised_advantages
from mindrl.batch.experience import Experience
from mindrl.batch.rollouts import Rollouts
from mindrl.observability.metrics import Metrics
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import Rewarded


class GrpoTrainer(PolicyTrainer[Experience]):
    """Trains a policy by group relative policy optimization (DeepSeekMath, arXiv 2402.03300)."""

    def estimate(
        self, rollouts: Rollouts, rewarded: Callable[[], Rewarded]
    ) -> tuple[Experience, Metrics]:
        """Add old and reference log-probs, and the advantage of each response."""
        old_logprobs_BT, ref_logprobs_BT = self.logprobs(rollouts)
        rewards_B = torch.tensor(rewarded().scores.rewards)
        advantages_B = group_normalised_advantages(rewards_B, rollouts.group_B)
        experience = rollouts.into(
            Experience,
            old_logprobs_BT=old_logprobs_BT,
            advantages_BT=advantages_B[:, None] * rollouts.response_mask_BT,
            ref_logprobs_BT=ref_logprobs_BT,
        )
        zero = (advantages_B == 0).double().mean().item()
        return experience, {"advantage/zero_fraction": zero}

    def learn(self, step: int, experience: Experience) -> Metrics:  # noqa: ARG002 - PPO needs it
        """Update the policy."""
        return self.update_policy(experience, self.minibatches.deal(experience.group_B))
