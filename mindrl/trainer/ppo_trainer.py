"""PPO: advantages from a critic that is trained beside the policy.

Shapes: B sequences of a step, T positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mindrl.algorithms.advantages import explained_variance, gae_advantages, token_rewards, whiten
from mindrl.algorithms.kl import kl_estimate
from mindrl.batch.experience import CriticMinibatch, ValuedExperience
from mindrl.batch.rollouts import Rollouts
from mindrl.observability.metrics import Metrics, update_metrics
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import Rewarded


class PpoTrainer(PolicyTrainer[ValuedExperience]):
    """Trains a policy by proximal policy optimization (arXiv 1707.06347), and its critic."""

    def estimate(
        self, rollouts: Rollouts, rewarded: Callable[[], Rewarded]
    ) -> tuple[ValuedExperience, Metrics]:
        """Add old and reference log-probs, values, returns, and the advantage of each token.

        The critic comes last, for its weights are what the first update needs.
        """
        mask_BT, rl = rollouts.response_mask_BT, self.rl
        old_logprobs_BT, ref_logprobs_BT = self.logprobs(rollouts)
        with self.timer("values"):
            values_BT = self.workers.compute_values(rollouts.sequences()).values_BT
        kl_BT = self._kl_in_reward(old_logprobs_BT, ref_logprobs_BT)
        scores_B = torch.tensor(rewarded().scores.rewards)
        advantages_BT, returns_BT = gae_advantages(
            token_rewards(scores_B, self.config.reward_kl_coef * kl_BT, mask_BT),
            values_BT,
            mask_BT,
            gamma=rl.gamma,
            lam=rl.lam,
        )
        experience = rollouts.into(
            ValuedExperience,
            old_logprobs_BT=old_logprobs_BT,
            advantages_BT=whiten(advantages_BT, mask_BT),
            ref_logprobs_BT=ref_logprobs_BT,
            old_values_BT=values_BT,
            returns_BT=returns_BT,
        )
        metrics = {
            "value/mean": values_BT[mask_BT].mean().item(),
            "value/return_mean": returns_BT[mask_BT].mean().item(),
            "value/explained_variance": explained_variance(values_BT, returns_BT, mask_BT),
            "advantage/mean": advantages_BT[mask_BT].mean().item(),
            "advantage/std": advantages_BT[mask_BT].std(correction=0).item(),
        }
        if self.config.reward_kl_coef:
            metrics["reward/kl"] = kl_BT[mask_BT].mean().item()
        return experience, metrics

    def learn(self, step: int, experience: ValuedExperience) -> Metrics:
        """Update the critic on all minibatches, then the policy on the same."""
        dealt = self.minibatches.deal(experience.group_B)
        with self.timer("update_critic"):
            minibatches = self.minibatches.cut(experience, dealt, CriticMinibatch)
            updates = self.taken(self.workers.update_critic, minibatches)
        metrics = update_metrics("critic", updates)
        if step <= self.rl.critic_warmup or self.ends_with(updates[-1]):
            return metrics
        return metrics | self.update_policy(experience, dealt)

    def _kl_in_reward(self, old_logprobs_BT: Tensor, ref_logprobs_BT: Tensor | None) -> Tensor:
        if self.config.reward_kl_coef == 0:
            return torch.zeros_like(old_logprobs_BT)
        assert ref_logprobs_BT is not None, "a KL term brings a reference"
        return kl_estimate(old_logprobs_BT, ref_logprobs_BT, self.rl.kl_penalty)
