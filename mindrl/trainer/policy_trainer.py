"""Train a policy on its responses: score them, estimate advantages, update the weights.

`TrainingLoop.step` takes the responses from a source (`source/`) and reports each update to it.

Shapes: B sequences of a step, T positions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mindrl.agents.host import AgentHost
from mindrl.algorithms.estimators import resolve_estimator
from mindrl.algorithms.objectives import objective_of
from mindrl.batch.experience import CriticMinibatch, Experience, Minibatch
from mindrl.batch.prompts import Prompt, sample_numbers
from mindrl.batch.rollouts import Rollouts
from mindrl.config.role_places import train_concurrently
from mindrl.config.run import RunConfig
from mindrl.data.order import prompt_order
from mindrl.data.run_data import RunData
from mindrl.errors import RewardError
from mindrl.observability.console import COLUMNS
from mindrl.observability.metrics import Metrics, merge, update_metrics
from mindrl.pictures.thumbnails import Thumbnails
from mindrl.report.stored_rows import MOST_TOKEN_ROWS
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.estimation import Estimation
from mindrl.trainer.evaluation import Evaluation
from mindrl.trainer.minibatches import MinibatchDealer
from mindrl.trainer.mismatch import mismatch
from mindrl.trainer.reward_manager import RatedBatch, RewardManager, RewardSources
from mindrl.trainer.rollout_files import RolloutFiles, stored_pictures
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.source.agent_turns import AgentTurns
from mindrl.trainer.source.choice import source_of
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.interface import Answering, Gathered
from mindrl.trainer.source.received_turns import ReceivedTurns
from mindrl.trainer.source.turns import ConversationTurns
from mindrl.trainer.training_loop import TrainingLoop
from mindrl.trainer.weight_probe import probed_gap, with_probe
from mindrl.trainer.worker_handle import WorkerHandle


class PolicyTrainer(TrainingLoop[Gathered, RatedBatch]):
    """Trains a policy on its own responses, and a critic if the run has one."""

    throughput = ("throughput/response_tokens_per_second", "rollout/response_tokens")
    columns = COLUMNS

    def __init__(
        self,
        config: RunConfig,
        data: RunData,
        workers: WorkerHandle,
        rewards: RewardSources,
        run_log: RunLog,
        *,
        max_logprob_gap: float | None,
    ) -> None:
        """Set all parts of a run; `max_logprob_gap` in nats, None accepts any finite gap."""
        super().__init__(config, workers, run_log, max_logprob_gap=max_logprob_gap)
        self.data = data
        self.order = prompt_order(config, data.train_sets)
        objective = objective_of(config)
        longest = config.generate_config.sampling_config.max_tokens
        self.minibatches = MinibatchDealer(
            self.rl,
            self.training.seed,
            longest=longest,
            corrects=config.rollout_correction is not None,
            selection=objective.selection,
        )
        self.sampling = Sampling(
            section=config.generate_config.sampling_config,
            stop_token_ids=data.stop_token_ids,
            samples_per_prompt=self.rl.n_samples_per_prompt,
            is_seeded=self.rl.reproducible_sampling,
        )
        if data.images is not None:
            thumbnails = Thumbnails(data.images.folder, run_log.folder.pictures)
            run_log.show_pictures = thumbnails.write
        self.rewards = RewardManager(rewards, data.decode, self.timer)
        # The reward functions outlive a trainer that has lost its workers.
        self.rewards.load_state({})
        self.answering = Answering(
            prompts=data.train.prompts,
            order=self.order,
            workers=workers,
            sampling=self.sampling,
            rewards=self.rewards,
            per_step=self.training.global_batch_size,
            round_steps=self.rl.rollout_round_steps,
            turns=self.turns("training"),
        )
        answering = replace(self.answering, turns=self.turns("evaluation"))
        self.evaluation = Evaluation(config, data, answering, run_log)
        self.source = source_of(config, self.answering, run_log.warn)
        assert objective.estimator is not None, "a policy is trained on advantages"
        estimator = resolve_estimator(objective.estimator)
        self.estimation = Estimation(config, estimator, workers, self.timer)

    def turns(self, owner: str) -> ConversationTurns | None:
        """Create the object that answers an owner's conversations; None if each has one turn."""
        section, host = self.config.environment_config, self.rewards.sources.environments
        if section is None or self.data.turns is None:
            return None
        shared: dict[str, Any] = {
            "owner": owner,
            "config": section,
            "template": self.data.turns,
            "decode": self.data.decode,
            "longest": self.sampling.section.max_tokens,
            "longest_prompt": self.rl.max_prompt_length,
            "warn": self.run_log.warn,
        }
        if host is None:
            return ReceivedTurns(**shared)
        if isinstance(host, AgentHost):
            return AgentTurns(host=host, **shared)
        return EnvironmentTurns(host=host, images=self.data.images, **shared)

    def state(self) -> dict[str, object]:
        """Return the state for a resume after this step, without the models."""
        return {
            **super().state(),
            "minibatches": self.minibatches.state(),
            **self.minibatches.entropy_state(),
            "rewards": self.rewards.state(),
        }

    def loaders(self) -> dict[str, Callable[[Any], None]]:
        """Return the function that restores each part of a state, by name."""
        return super().loaders() | {
            "minibatches": self.minibatches.load_state,
            "entropy": self.minibatches.load_entropy,
            "rewards": self.rewards.load_state,
        }

    def learn_from(self, step: int, data: Gathered) -> tuple[Metrics, RatedBatch]:
        """Train on responses, or only score them."""
        learn = self.train_on if self.config.learns else self.rate
        computed, batch = learn(step, data)
        return merge(computed, data.metrics), batch

    def train_on(self, step: int, gathered: Gathered) -> tuple[Metrics, RatedBatch]:
        """Score, estimate and update; return the metrics and the batch.

        With `rl_config.blocking: false` reward functions run while the devices estimate.
        """
        rollouts, baseline_B = gathered.rollouts, None
        if self.rl.has_baseline:
            baseline_B = self._greedy_rewards(step, gathered.prompts)[rollouts.group_B]
        with gathered.rating as rewarded:
            if self.rl.resets_reference(step):
                # The actor's weights, unchanged since the update, were offloaded for the rollout.
                with self.timer("ref_log_prob"):
                    self.workers.reset_reference()
            probe = gathered.gap | probed_gap(self.workers, gathered.probed)
            taught = self._with_teachers(rollouts, gathered.prompts)
            experience, estimated = self.estimation.of(taught, rewarded, baseline_B)
        scores = rewarded().scores
        self._note_failures(step, scores)
        self.check_interrupt()
        updated, logprobs_BT = self.update_models(step, experience)
        batch = RatedBatch(
            prompts=gathered.prompts,
            rollouts=rollouts,
            rewarded=rewarded(),
            advantages_BT=experience.advantages_BT,
            logprobs_BT=logprobs_BT,
            conversations=gathered.conversations,
        )
        found = merge(rollouts.metrics(), scores.metrics(), estimated, updated)
        return with_probe(found, probe), batch

    def _with_teachers(self, rollouts: Rollouts, prompts: Sequence[Prompt]) -> Rollouts:
        """Set each sequence's teacher number from its prompt, if there are several teachers."""
        teacher = self.config.teacher_config
        if teacher is None or not teacher.models:
            return rollouts
        numbers = torch.tensor([teacher.number(each.source) for each in prompts])
        return replace(rollouts, teacher_B=numbers[rollouts.group_B])

    def rate(self, step: int, gathered: Gathered) -> tuple[Metrics, RatedBatch]:
        """Only score, without training; return the metrics and the batch."""
        prompts, rollouts = gathered.prompts, gathered.rollouts
        with gathered.rating as rewarded:
            scores = rewarded().scores
        self._note_failures(step, scores)
        batch = RatedBatch(
            prompts=prompts,
            rollouts=rollouts,
            rewarded=rewarded(),
            conversations=gathered.conversations,
        )
        return merge(rollouts.metrics(), scores.metrics()), batch

    def _greedy_rewards(self, step: int, prompts: Sequence[Prompt]) -> Tensor:
        """Generate one greedy response per prompt, and score it."""
        greedy = replace(self.sampling, samples_per_prompt=1, is_greedy=True)
        with self.timer("baseline"):
            rollouts = self.workers.generate_sequences(prompts, greedy, step=step)
        with self.rewards.compute(prompts, rollouts, blocking=True) as rewarded:
            scores = rewarded().scores
        self._note_failures(step, scores)
        return torch.tensor(scores.rewards)

    def record(self, step: int, metrics: Metrics, result: RatedBatch) -> None:
        """Write the metrics, some samples, and the responses if they are kept."""
        # Responses are stored by prompt: take the first response to each prompt, then the second.
        rollouts, kept = result.rollouts, self.training.keep_rollouts
        numbers = sample_numbers(rollouts.conversations().last(rollouts.group_B).tolist())
        spread = sorted(range(len(numbers)), key=numbers.__getitem__)
        self.run_log.step(step, metrics, result.samples(spread[: self.rl.log_samples]))
        if kept:
            files = RolloutFiles(self.run_log.folder.rollouts)
            self.run_log.keep(files, lambda: files.write(step, result, kept))
            self.run_log.keep_thumbnails(stored_pictures(rollouts, MOST_TOKEN_ROWS))

    def update_models(self, step: int, experience: Experience) -> tuple[Metrics, Tensor | None]:
        """Run the optimizer steps of a step: the critic's on all minibatches, then the policy's.

        They run concurrently if they share no device and neither can stop the other. Returns the
        result of `update_policy`.
        """
        dealt = self.minibatches.deal(experience.group_B)
        if self.config.critic_config is None:
            return self.update_policy(experience, dealt)
        minibatches = [*self.minibatches.cut(experience, dealt, CriticMinibatch)]
        updates_policy, updated = step > self.rl.critic_warmup, None
        if updates_policy and train_concurrently(self.config):
            self.workers.begin("update_critic", "critic", minibatches)
            updated = self.update_policy(experience, dealt)
        with self.timer("update_critic"):
            updates = self.run_updates(self.workers.update_critic, minibatches)
        metrics = update_metrics("critic", updates)
        if not updates_policy or self.ends_with(updates[-1]):
            return metrics, experience.old_logprobs_BT
        of_policy, logprobs_BT = updated or self.update_policy(experience, dealt)
        return metrics | of_policy, logprobs_BT

    def update_policy(
        self, experience: Experience, dealt: Sequence[Tensor]
    ) -> tuple[Metrics, Tensor | None]:
        """Run one optimizer step of the policy on each set of rows.

        If updates return the log-probs from before their step, those of the first update measure
        the mismatch: later updates start from changed weights.

        Returns:
            The metrics, and the log-probs of the policy before the first update; NaN in unknown
            rows.
        """
        read: list[Tensor] = []

        def update(minibatch: Minibatch) -> Metrics:
            found = self.workers.update(minibatch)
            if found.logprobs_BT is not None:
                read.append(found.logprobs_BT)
            return found.metrics

        with self.timer("update"):
            minibatches = self.minibatches.cut(experience, dealt, Minibatch)
            updates = self.run_updates(update, minibatches)
        metrics = update_metrics("update", updates)
        control, entropy = self.minibatches.entropy, metrics.get("update/entropy")
        if control is not None and entropy is not None:
            metrics["update/entropy_coef"] = control.coef
            control.observe(entropy)
        if not read:
            return metrics, experience.old_logprobs_BT
        first, correction = experience.rows(dealt[0]), self.config.rollout_correction
        logprobs_BT = torch.full_like(experience.rollout_logprobs_BT, math.nan)
        logprobs_BT[dealt[0], : read[0].size(1)] = read[0]
        return merge(metrics, mismatch(first, read[0], correction)), logprobs_BT

    def evaluate(self, step: int) -> float | None:
        """Evaluate; return the value that determines the best model, None without evaluation."""
        if not self.config.rolls_out:
            return None
        return self.evaluation.measure(step, self._note_failures)

    def _note_failures(self, step: int, scores: Scores) -> None:
        """Report failed rewards, and end the run if `rl_config.on_reward_failure` requires it."""
        self.run_log.reward_failures(step, scores.failures)
        if lines := scores.fatal(self.rl.on_reward_failure):
            raise RewardError("\n".join(f"step {step}: {line}" for line in lines))
