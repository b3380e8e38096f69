"""PPO: advantages from a critic that is trained beside the policy.

Shapes: B sequences of a step, T positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mindrl.algorithms.gae import explained_variance, gae_advantages, token_rewards, whiten
from mindrl.algorithms.kl import KlKind, kl_estimate
from mindrl.batch.experience import ValuedExperience
from mindrl.batch.rollouts import Rollouts
from mindrl.observability.metrics import Metrics, update_metrics
from mindrl.trainer.policy_trainer import (
    PolicyTrainer,
    TrainerData,
    TrainerRoles,
    TrainerSettings,
)
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.roles import Critic
from mindrl.trainer.run_log import RunLog


@dataclass(frozen=True, kw_only=True)
class PpoSettings(TrainerSettings):
    """The numbers of a run with a critic."""

    gamma: float
    lam: float
    kl_kind: KlKind
    reward_kl_coef: float
    """Weight of the KL to the reference in the reward of each token; 0 leaves it out."""
    critic_warmup: int
    """Steps at the start of the run that train the critic alone."""
    critic_folder: Path
    """Where the critic is exported to."""


@dataclass(frozen=True, kw_only=True)
class PpoRoles(TrainerRoles):
    """The models and the rewards of a run with a critic."""

    critic: Critic


class PpoTrainer(PolicyTrainer[ValuedExperience]):
    """Trains a policy by proximal policy optimization (arXiv 1707.06347), and its critic."""

    def __init__(
        self, settings: PpoSettings, data: TrainerData, roles: PpoRoles, run_log: RunLog
    ) -> None:
        """Take all parts of a run."""
        super().__init__(settings, data, roles, run_log)
        self.ppo = settings
        self.critic = roles.critic

    def estimate(
        self, rollouts: Rollouts, rewarded: Callable[[], Rewarded]
    ) -> tuple[ValuedExperience, Metrics]:
        """Add old and reference log-probs, values, returns, and the advantage of each token.

        The critic comes last, for its weights are what the first update needs.
        """
        sequences, mask_BT = rollouts.sequences(), rollouts.response_mask_BT
        old_logprobs_BT, ref_logprobs_BT = self.logprobs(rollouts)
        with self.timer("values"):
            values_BT = self.critic.compute_values(sequences).values_BT
        kl_BT = self._kl_in_reward(old_logprobs_BT, ref_logprobs_BT)
        scores_B = torch.tensor(rewarded().scores.rewards)
        advantages_BT, returns_BT = gae_advantages(
            token_rewards(scores_B, self.ppo.reward_kl_coef * kl_BT, mask_BT),
            values_BT,
            mask_BT,
            gamma=self.ppo.gamma,
            lam=self.ppo.lam,
        )
        experience = ValuedExperience(
            tokens_BT=sequences.tokens_BT,
            lengths_B=sequences.lengths_B,
            response_mask_BT=mask_BT,
            group_B=rollouts.group_B,
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
        if self.ppo.reward_kl_coef:
            metrics["reward/kl"] = kl_BT[mask_BT].mean().item()
        return experience, metrics

    def learn(self, step: int, experience: ValuedExperience) -> Metrics:
        """Update the critic on all minibatches, then the policy on the same."""
        plan = self.settings.minibatches
        dealt = plan.deal(experience.group_B)
        with self.timer("update_critic"):
            updates = [
                self.critic.update_critic(minibatch)
                for minibatch in experience.critic_minibatches(plan, dealt)
            ]
        metrics = update_metrics("critic", updates)
        if step <= self.ppo.critic_warmup:
            return metrics
        return metrics | self.update_policy(experience.minibatches(plan, dealt))

    def export(self, model_folder: Path, record: Mapping[str, object]) -> None:
        """Write the policy and the critic, with a record of them."""
        super().export(model_folder, record)
        self.critic.export_critic(self.ppo.critic_folder, record)

    def _kl_in_reward(self, old_logprobs_BT: Tensor, ref_logprobs_BT: Tensor | None) -> Tensor:
        if self.ppo.reward_kl_coef == 0:
            return torch.zeros_like(old_logprobs_BT)
        assert ref_logprobs_BT is not None, "a KL term brings a reference"
        return kl_estimate(old_logprobs_BT, ref_logprobs_BT, self.ppo.kl_kind)
