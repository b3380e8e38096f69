"""Compute the inputs of updates from the rollouts of a step: log-probs, values, advantages.

Shapes: B sequences of a step, T positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.algorithms.estimators import Estimator, RatedResponses, estimated
from mindrl.algorithms.kl import KlKind, kl_estimate
from mindrl.batch.experience import Experience, ValuedExperience
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.route_keys import with_content_keys
from mindrl.batch.sequences import Logprobs
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.observability.metrics import Metrics
from mindrl.observability.timing import StageTimer
from mindrl.trainer.mismatch import mismatch
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.worker_handle import WorkerHandle


@dataclass(frozen=True, kw_only=True, eq=False)
class _Passes:
    """Results of the models for the sampled tokens, [B, T]; None for a model that is not run."""

    policy_BT: Tensor | None
    """Log-probs in nats, as those of the other models."""
    reference_BT: Tensor | None
    teacher: Logprobs | None
    """With its most probable tokens if the loss needs them."""
    values_BT: Tensor | None

    def kl(self, kind: KlKind) -> Tensor:
        """Return the KL term of each token, between policy and reference."""
        assert self.reference_BT is not None, "a KL term requires a reference"
        assert self.policy_BT is not None, "a KL term requires log-probs of the policy"
        return kl_estimate(self.policy_BT, self.reference_BT, kind)


class Estimation:
    """Runs the models of a run, and estimates advantages."""

    def __init__(
        self,
        config: RunConfig,
        estimator: Estimator,
        workers: WorkerHandle,
        timer: StageTimer,
    ) -> None:
        """Set the parts; `timer` times the stages."""
        self.config = config
        self.estimator = estimator
        self.workers = workers
        self.timer = timer

    def of(
        self,
        rollouts: Rollouts,
        rewarded: Callable[[], Rewarded],
        baseline_B: Tensor | None = None,
    ) -> tuple[Experience, Metrics]:
        """Return the rollouts with all inputs of the updates, and metrics.

        `rewarded` waits for the rewards and is called after all models have run. The baseline is
        the reward of a greedy response to each sequence's prompt.
        """
        rollouts, rl = self._with_route_keys(rollouts), self.config.rl_config
        passes, kl_BT = self._passes(rollouts), None
        if self.config.reward_kl_coef:
            kl_BT = passes.kl(rl.kl_kind)
        talks, mask_BT = rollouts.conversations(), rollouts.response_mask_BT
        rated = RatedResponses(
            rewards_B=torch.tensor(rewarded().scores.rewards),
            group_B=talks.last(rollouts.group_B),
            mask_BT=talks.mask(),
            baseline_B=baseline_B,
            penalty_BT=None if kl_BT is None else talks.joined(self.config.reward_kl_coef * kl_BT),
            values_BT=None if passes.values_BT is None else talks.joined(passes.values_BT),
            turn_rewards_BT=self._turn_rewards(rollouts),
            gamma=rl.gamma,
            lam=rl.lam,
        )
        estimate = estimated(self.estimator, rated)
        advantages_BT, metrics = self._taught(talks.spread(estimate.advantages_BT), passes, mask_BT)
        metrics |= estimate.metrics
        if not self._learns_without_advantages():
            zero_C = (talks.joined(advantages_BT) == 0).all(dim=1)
            metrics["advantage/zero_fraction"] = zero_C.double().mean().item()
        if passes.policy_BT is not None and self.config.old_log_probs == "recompute":
            metrics |= mismatch(rollouts, passes.policy_BT, self.config.rollout_correction)
        if baseline_B is not None:
            metrics["reward/baseline"] = baseline_B.mean().item()
        if kl_BT is not None:
            metrics["reward/kl"] = kl_BT[mask_BT].mean().item()
        columns: dict[str, Tensor | LikelyTokens | None] = {
            "old_logprobs_BT": passes.policy_BT,
            "advantages_BT": advantages_BT,
            "ref_logprobs_BT": passes.reference_BT,
            "likely": None if passes.teacher is None else passes.teacher.likely,
        }
        if passes.values_BT is None:
            return rollouts.into(Experience, **columns), metrics
        assert estimate.returns_BT is not None, "an estimator with values returns targets"
        returns_BT = talks.spread(estimate.returns_BT)
        columns |= {"old_values_BT": passes.values_BT, "returns_BT": returns_BT}
        return rollouts.into(ValuedExperience, **columns), metrics

    def _with_route_keys(self, rollouts: Rollouts) -> Rollouts:
        """Set the key of each sequence's routes, which a pass here or the engine computes."""
        match self.config.actor_config.router_replay:
            case "R2":
                return rollouts.with_route_keys()
            case "R3":
                return with_content_keys(rollouts)
        return rollouts

    def _taught(
        self, advantages_BT: Tensor, passes: _Passes, mask_BT: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Add log p(teacher) - log p(policy) of each token; return also the teacher's metrics.

        The term counts the token's own KL(policy || teacher), and not that of later tokens.
        With `teacher_config.candidates` the loss has the divergence instead.
        """
        section = self.config.teacher_config
        if section is None or passes.teacher is None:
            return advantages_BT, {}
        assert passes.policy_BT is not None, "a teacher requires log-probs of the policy"
        theirs_BT = passes.teacher.logprobs_BT
        kl_BT = kl_estimate(passes.policy_BT, theirs_BT, "k1").masked_fill(~mask_BT, 0.0)
        metrics = {
            "teacher/kl": kl_BT[mask_BT].mean().item(),
            "teacher/logprob": theirs_BT[mask_BT].mean().item(),
        }
        coef = 0.0 if section.candidates else section.advantage_coef
        return advantages_BT - coef * kl_BT, metrics

    def _learns_without_advantages(self) -> bool:
        """Return whether a teacher's divergence in the loss is all that the run trains on."""
        section = self.config.teacher_config
        is_alone = self.config.rl_config.adv_estimator == "teacher"
        return is_alone and section is not None and section.candidates > 0

    def _turn_rewards(self, rollouts: Rollouts) -> Tensor | None:
        section, given_BT = self.config.environment_config, rollouts.turn_rewards_BT
        if section is None or given_BT is None:
            return None
        return section.reward_weight * rollouts.conversations().joined(given_BT)

    def _begin(self, rollouts: Rollouts) -> None:
        """Start all models; those on separate devices run concurrently."""
        config, sequences = self.config, rollouts.sequences()
        reads: dict[str, tuple[Role, bool]] = {
            "compute_ref_log_prob": ("ref", "ref" in config.roles),
            "compute_teacher_log_prob": ("teacher", "teacher" in config.roles),
            "compute_log_prob": ("actor", config.old_log_probs == "recompute"),
            "compute_values": ("critic", config.critic_config is not None),
        }
        for method, (role, is_needed) in reads.items():
            dealt = sequences.by_teacher() if role == "teacher" else [slice(None)]
            self.workers.begin(method, role, map(sequences.rows, dealt) if is_needed else [])

    def _passes(self, rollouts: Rollouts) -> _Passes:
        """Run each model of the run, in the order that moves the fewest weights.

        The policy's pass is left out if the update computes its log-probs. The critic runs last,
        because the first update needs its weights.
        """
        if self.config.is_spread:
            self._begin(rollouts)
        sequences, reference_BT, teacher, values_BT = rollouts.sequences(), None, None, None
        if self.config.uses_reference:
            with self.timer("ref_log_prob"):
                reference_BT = self.workers.compute_ref_log_prob(sequences).logprobs_BT
        if self.config.teacher_config is not None:
            with self.timer("teacher_log_prob"):
                teacher = self.workers.compute_teacher_log_prob(sequences)
        by_engine = self.config.old_log_probs == "from_rollout"
        policy_BT = rollouts.rollout_logprobs_BT if by_engine else None
        if self.config.old_log_probs == "recompute":
            with self.timer("log_prob"):
                policy_BT = self.workers.compute_log_prob(sequences).logprobs_BT
        if self.config.critic_config is not None:
            with self.timer("values"):
                values_BT = self.workers.compute_values(sequences).values_BT
        return _Passes(
            policy_BT=policy_BT, reference_BT=reference_BT, teacher=teacher, values_BT=values_BT
        )
