"""GRPO, step by step: roll out, rate, score, update.

Shapes: B sequences of a step, T positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mindrl.algorithms.advantages import group_normalised_advantages
from mindrl.batch.experience import Experience, MinibatchPlan
from mindrl.batch.prompts import Prompt, Sampling
from mindrl.batch.rollouts import Rollouts
from mindrl.data.order import PromptOrder
from mindrl.errors import LogprobGapError, MindrlError
from mindrl.observability.metrics import Metrics, mean_metrics, merge, nonfinite_keys
from mindrl.observability.samples import Sample
from mindrl.observability.timing import StageTimer
from mindrl.rewards.scorer import Scores
from mindrl.trainer.journal import Journal
from mindrl.trainer.roles import Policy, Reference, Scorer, Workers


@dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """The numbers of a run."""

    steps: int
    prompts_per_step: int
    sampling: Sampling
    minibatches: MinibatchPlan
    accuracy_reward: str
    """The reward whose mean over greedy responses is the accuracy."""
    test_freq: int
    save_interval: int
    max_logprob_gap: float
    log_samples: int


@dataclass(frozen=True, kw_only=True)
class GrpoData:
    """Prompts and how to read what answers them."""

    train: Sequence[Prompt]
    test: Sequence[Prompt]
    order: PromptOrder
    decode: Callable[[list[int]], str]
    """From response token ids to text, for rewards and for people."""


@dataclass(frozen=True, kw_only=True)
class GrpoRoles:
    """The models and the rewards of a run."""

    policy: Policy
    reference: Reference | None
    """None where the loss has no KL term."""
    workers: Workers
    scorer: Scorer


class GrpoTrainer:
    """Trains a policy by group relative policy optimization (DeepSeekMath, arXiv 2402.03300)."""

    def __init__(
        self, settings: GrpoSettings, data: GrpoData, roles: GrpoRoles, journal: Journal
    ) -> None:
        self.settings = settings
        self.data = data
        self.roles = roles
        self.journal = journal
        self.timer = StageTimer()

    def run(self, model_folder: Path) -> None:
        """Train from the first step to the last, evaluate, and export the model.

        Raises:
            LogprobGapError: The rollout engine did not have the trainer's weights.
            MindrlError: A metric is not finite, or whatever a role raises.
        """
        self.evaluate(0)
        for step in range(1, self.settings.steps + 1):
            metrics, samples = self.step(step)
            self.journal.step(step, metrics, samples)
            self._check(step, metrics)
            last = step == self.settings.steps
            if last or (self.settings.test_freq and step % self.settings.test_freq == 0):
                self.evaluate(step)
            if last or (self.settings.save_interval and step % self.settings.save_interval == 0):
                self.roles.workers.export(model_folder)
                self.journal.outcome.model_saved = True

    def step(self, step: int) -> tuple[Metrics, list[Sample]]:
        """Roll out, rate, score and update once."""
        policy, timer = self.roles.policy, self.timer
        with timer("step"):
            prompts = self._prompts(step)
            with timer("rollout"), policy.rollout_phase():
                rollouts = policy.generate_sequences(prompts, self.settings.sampling, step=step)
            with timer("reward"):
                responses, scores = self.rate(prompts, rollouts)
            experience, estimated = self.estimate(rollouts, torch.tensor(scores.rewards))
            with timer("update"), policy.train_phase():
                updates = [
                    policy.update(minibatch)
                    for minibatch in experience.minibatches(self.settings.minibatches)
                ]
        metrics = merge(
            rollouts.metrics(),
            scores.metrics(),
            estimated,
            {f"update/{name}": value for name, value in mean_metrics(updates).items()},
            timer.flush(),
            self.roles.workers.flush_metrics(),
        )
        rate = metrics["rollout/response_tokens"] / metrics["seconds/step"]
        metrics["throughput/response_tokens_per_second"] = rate
        count = self.settings.log_samples
        return metrics, self._samples(prompts, rollouts, responses, scores)[:count]

    def rate(self, prompts: Sequence[Prompt], rollouts: Rollouts) -> tuple[list[str], Scores]:
        """Read each response and rate it against its prompt's reference answer."""
        groups = rollouts.group_B.tolist()
        responses = [self.data.decode(rollouts.response_tokens(row)) for row in range(len(groups))]
        references = [prompts[group].reference for group in groups]
        return responses, self.roles.scorer.score(responses, references)

    def estimate(self, rollouts: Rollouts, rewards_B: Tensor) -> tuple[Experience, Metrics]:
        """Add what the update needs: old and reference log-probs, advantages."""
        sequences = rollouts.sequences()
        with self.timer("log_prob"):
            old_logprobs_BT = self.roles.policy.compute_log_prob(sequences).logprobs_BT
        ref_logprobs_BT = None
        if self.roles.reference is not None:
            with self.timer("ref_log_prob"):
                scored = self.roles.reference.compute_ref_log_prob(sequences)
                ref_logprobs_BT = scored.logprobs_BT
        advantages_B = group_normalised_advantages(rewards_B, rollouts.group_B)
        experience = Experience(
            tokens_BT=sequences.tokens_BT,
            lengths_B=sequences.lengths_B,
            response_mask_BT=sequences.response_mask_BT,
            group_B=rollouts.group_B,
            old_logprobs_BT=old_logprobs_BT,
            advantages_BT=advantages_B[:, None] * rollouts.response_mask_BT,
            ref_logprobs_BT=ref_logprobs_BT,
        )
        gap_N = (rollouts.rollout_logprobs_BT - old_logprobs_BT)[rollouts.response_mask_BT].abs()
        return experience, {
            "logprob_gap/mean": gap_N.mean().item(),
            "logprob_gap/max": gap_N.max().item(),
            "advantage/zero_fraction": (advantages_B == 0).double().mean().item(),
        }

    def evaluate(self, step: int) -> None:
        """Answer the held-out prompts greedily; without such prompts do nothing."""
        if not self.data.test:
            return
        greedy = Sampling(
            temperature=0.0,
            max_tokens=self.settings.sampling.max_tokens,
            stop_token_ids=self.settings.sampling.stop_token_ids,
        )
        with self.roles.policy.rollout_phase():
            rollouts = self.roles.policy.generate_sequences(self.data.test, greedy, step=step)
        responses, scores = self.rate(self.data.test, rollouts)
        right = scores.parts[self.settings.accuracy_reward]
        samples = self._samples(self.data.test, rollouts, responses, scores)
        self.journal.evaluation(step, sum(right) / len(right), samples)
        # What the switches of an evaluation cost belongs to no step.
        self.roles.workers.flush_metrics()

    def _prompts(self, step: int) -> list[Prompt]:
        indices = self.data.order.indices(step - 1, self.settings.prompts_per_step)
        return [self.data.train[index] for index in indices]

    def _check(self, step: int, metrics: Metrics) -> None:
        gap, limit = metrics["logprob_gap/mean"], self.settings.max_logprob_gap
        if not gap <= limit:
            raise LogprobGapError(
                f"step {step}: rollout and training log-probs differ by {gap:.3g} nats on average, "
                f"rl_config.max_logprob_gap={limit:g}: the rollout engine has other weights, "
                "another temperature or another precision than the trainer"
            )
        if broken := nonfinite_keys(metrics):
            raise MindrlError(f"step {step}: not a finite number: {', '.join(broken)}")

    def _samples(
        self,
        prompts: Sequence[Prompt],
        rollouts: Rollouts,
        responses: Sequence[str],
        scores: Scores,
    ) -> list[Sample]:
        return [
            Sample(
                prompt=prompts[group].text,
                response=responses[row],
                reference=prompts[group].reference,
                reward=scores.rewards[row],
                parts={name: part[row] for name, part in scores.parts.items()},
                finished=bool(rollouts.finished_B[row]),
                response_tokens=int(rollouts.response_mask_BT[row].sum()),
            )
            for row, group in enumerate(rollouts.group_B.tolist())
        ]
