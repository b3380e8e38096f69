"""The loop that all trainers share: roll out, rate, estimate, learn.

Shapes: B sequences of a step, T positions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mindrl.algorithms.estimators import resolve_estimator
from mindrl.batch.experience import CriticMinibatch, Experience, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.checkpoint.fixed_models import fixed_models
from mindrl.config.resume import recorded_config
from mindrl.config.role_places import learn_beside
from mindrl.config.run import RunConfig
from mindrl.data.order import prompt_order
from mindrl.data.run_data import RunData
from mindrl.errors import (
    ClusterError,
    NonfiniteError,
    NoSignalError,
    ReshardError,
    RewardError,
    SkippedUpdatesError,
    StopRequestedError,
)
from mindrl.observability.metrics import Metrics, measured, merge, update_metrics
from mindrl.observability.run_folder import best_folder
from mindrl.observability.timing import StageTimer
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.checkpoints import Checkpoints
from mindrl.trainer.colocated_actor import ColocatedActor
from mindrl.trainer.estimation import Estimation
from mindrl.trainer.evaluation import Evaluation
from mindrl.trainer.gathering import Answering, Gathered, Gathering
from mindrl.trainer.gatherings import gathering_of
from mindrl.trainer.minibatches import MinibatchDealer, MinibatchT
from mindrl.trainer.mismatch import mismatch
from mindrl.trainer.reward_manager import RatedBatch, RewardManager, RewardSources
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.step_checks import StepChecks

_ENDS = (NonfiniteError, NoSignalError, RewardError, SkippedUpdatesError, StopRequestedError)
"""What ends a run whose weights are as good as before."""


class PolicyTrainer:
    """Trains a policy on its own responses, and a critic beside it where the run has one."""

    def __init__(
        self,
        config: RunConfig,
        data: RunData,
        workers: ColocatedActor,
        rewards: RewardSources,
        run_log: RunLog,
        *,
        max_logprob_gap: float | None,
    ) -> None:
        """Take all parts of a run; `max_logprob_gap` in nats, None judges none that is a number."""
        self.config = config
        self.training, self.rl = config.megatron_training, config.rl_config
        self.data = data
        self.order = prompt_order(config, data.train_sets)
        self.workers = workers
        record = {
            "config": recorded_config(config),
            "fixed_models": fixed_models(config),
            **run_log.summary.provenance,
        }
        self.checkpoints = Checkpoints(workers, self.training, record, run_log)
        self.first_step = 1
        self.run_log = run_log
        self.timer = StageTimer(run_log.console.stage)
        self.checks = StepChecks(
            max_logprob_gap, self.rl.logprob_gap_steps, stops=self.training.on_nonfinite == "stop"
        )
        longest = config.generate_config.sampling_config.max_tokens
        self.minibatches = MinibatchDealer(
            self.rl,
            self.training.seed,
            longest=longest,
            corrects=config.rollout_correction is not None,
        )
        self.sampling = Sampling(
            section=config.generate_config.sampling_config,
            stop_token_ids=data.stop_token_ids,
            samples_per_prompt=self.rl.n_samples_per_prompt,
            is_seeded=self.rl.reproducible_sampling,
        )
        self.rewards = RewardManager(rewards, data.decode, self.timer)
        self.evaluation = Evaluation(config, data, workers, self.rewards, run_log)
        self.answering = Answering(
            prompts=data.train.prompts,
            order=self.order,
            workers=workers,
            sampling=self.sampling,
            rewards=self.rewards,
            per_step=self.training.global_batch_size,
        )
        self.gathering: Gathering = gathering_of(config, self.answering, run_log.warn)
        estimator = resolve_estimator(self.rl.adv_estimator)
        self.estimation = Estimation(config, estimator, workers, self.timer)
        self.heed: Callable[[], None] = lambda: None

    def run(self, heed: Callable[[], None] = lambda: None) -> None:
        """Train from the first step to the last, evaluate, and export what was trained.

        `heed` raises StopRequestedError where the run has been asked to stop; what has been learned
        is then exported first.

        Raises:
            LogprobGapError: The rollout engine did not have the trainer's weights.
            RewardError: A reward function failed for all responses of a step.
            NoSignalError: No prompt of the data has anything to teach.
            StopRequestedError: The run was asked to stop.
            SkippedUpdatesError: A model has taken no update for some steps.
            NonfiniteError: A number was not finite, and `on_nonfinite` stops for it.
            MindrlError: A metric is not finite, or whatever a role raises.
        """
        self.heed = heed
        try:
            self._run()
        except _ENDS as end:
            try:
                # No step is left half learned: the weights are those of the last one on record.
                self._save_now()
                if self.run_log.summary.steps != (self.run_log.summary.model_step or 0):
                    self._export()
            except (ClusterError, ReshardError) as error:
                # Whoever starts new workers for a lost one is not to take it for the end.
                self.run_log.warn(f"what was learned last could not be saved: {error}")
                raise end from error
            raise

    def _run(self) -> None:
        training, rl, workers = self.training, self.rl, self.workers
        if self.first_step == 1:
            self.evaluate(0)
        if self.config.watched_steps:
            workers.record_memory(self.first_step <= self.config.watched_steps)
        for step in range(self.first_step, training.train_iters + 1):
            self.heed()
            metrics, batch = self.step(step)
            metrics |= self.checkpoints.finish()
            self._record(step, metrics, batch)
            self._note_memory(step)
            for warning in self.checks.warnings(step, metrics):
                self.run_log.warn(warning)
            last, accuracy = step == training.train_iters, None
            tests = last or (rl.test_freq and step % rl.test_freq == 0)
            # The weights are still there from the update; an evaluation sends them away.
            if last or (training.exports_every and step % training.exports_every == 0):
                self._export()
            if tests and self.config.learns:
                accuracy = self.evaluate(step)
                self._keep_best(accuracy)
            if self.checkpoints.is_due(step):
                self.checkpoints.begin(step, self.state(), accuracy)
        self.checkpoints.finish()

    def _note_memory(self, step: int) -> None:
        """Write what was noted of a step at the start of the run."""
        if step <= (watched := self.config.watched_steps):
            moments = self.workers.flush_moments()
            if any(moments):
                self.run_log.memory(step, moments)
            self.workers.record_memory(step < watched)

    def state(self) -> dict[str, object]:
        """Return what the run has to know besides its models to go on behind this step."""
        return {
            "summary": self.run_log.summary.counts(),
            "checks": self.checks.counts(),
            "minibatches": self.minibatches.state(),
            **self.minibatches.entropy_state(),
            "gathering": self.gathering.state(self.run_log.summary.steps),
        }

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on behind a step, with those parts of a state that there are.

        The models have theirs already.
        """
        self.first_step, self.checkpoints.newest = step + 1, step
        taking: dict[str, Callable[[Any], None]] = {
            "summary": self.run_log.summary.take_counts,
            "checks": self.checks.take_counts,
            "minibatches": self.minibatches.take_state,
            "entropy": self.minibatches.take_entropy,
            "best": self.checkpoints.take_best,
        }
        for part in taking.keys() & state.keys():
            taking[part](state[part])
        self.gathering.resume(step, state.get("gathering", {}))

    def _save_now(self) -> None:
        """Write the state behind the last recorded step, unless that has been done."""
        self.checkpoints.finish()
        step = self.run_log.summary.steps
        if self.training.save_interval and step > self.checkpoints.newest:
            self.checkpoints.begin(step, self.state())
            self.checkpoints.finish()

    def step(self, step: int) -> tuple[Metrics, RatedBatch]:
        """Roll out, rate, estimate and learn once."""
        with self.timer("step"):
            gathered = self.gathering.gather(step, self.heed)
            learn = self.train_on if self.config.learns else self.rate
            computed, batch = learn(step, gathered)
            computed |= self.gathering.learned(step)
        spent = self.spent(computed["rollout/response_tokens"])
        return measured(merge(computed, gathered.metrics, spent)), batch

    def spent(self, response_tokens: float) -> Metrics:
        """Return what a step, which is over, took of time and memory."""
        spent = merge(self.timer.flush(), self.workers.flush_metrics())
        rate = response_tokens / spent["seconds/step"]
        return spent | {"throughput/response_tokens_per_second": rate}

    def train_on(self, step: int, gathered: Gathered) -> tuple[Metrics, RatedBatch]:
        """Estimate and learn; returns all that was computed, and what it was computed of.

        The rating lasts while the devices estimate.
        """
        rollouts, baseline_B = gathered.rollouts, None
        if self.rl.has_baseline:
            baseline_B = self._greedy_rewards(step, gathered.prompts)[rollouts.group_B]
        with gathered.rating as rewarded:
            if self.config.resets_reference(step):
                # The actor's weights, unchanged since the update, have left for the rollout.
                with self.timer("ref_log_prob"):
                    self.workers.reset_reference()
            experience, estimated = self.estimation.of(rollouts, rewarded, baseline_B)
        scores = rewarded().scores
        self._note_failures(step, scores)
        self.heed()
        learned, logprobs_BT = self.learn(step, experience)
        batch = RatedBatch(
            prompts=gathered.prompts,
            rollouts=rollouts,
            rewarded=rewarded(),
            advantages_BT=experience.advantages_BT,
            logprobs_BT=logprobs_BT,
        )
        return merge(rollouts.metrics(), scores.metrics(), estimated, learned), batch

    def rate(self, step: int, gathered: Gathered) -> tuple[Metrics, RatedBatch]:
        """Rate alone, where nothing learns; returns what was measured, and of what."""
        prompts, rollouts = gathered.prompts, gathered.rollouts
        with gathered.rating as rewarded:
            scores = rewarded().scores
        self._note_failures(step, scores)
        batch = RatedBatch(prompts=prompts, rollouts=rollouts, rewarded=rewarded())
        return merge(rollouts.metrics(), scores.metrics()), batch

    def _greedy_rewards(self, step: int, prompts: Sequence[Prompt]) -> Tensor:
        """Answer each prompt once more, greedily, and rate that."""
        greedy = replace(self.sampling, samples_per_prompt=1, is_greedy=True)
        with self.timer("baseline"):
            rollouts = self.workers.generate_sequences(prompts, greedy, step=step)
        with self.rewards.compute(prompts, rollouts, blocking=True) as rewarded:
            scores = rewarded().scores
        self._note_failures(step, scores)
        return torch.tensor(scores.rewards)

    def _record(self, step: int, metrics: Metrics, batch: RatedBatch) -> None:
        # The first response to each prompt, then the second: they lie prompt by prompt.
        each, kept = self.rl.n_samples_per_prompt, self.training.keep_rollouts
        spread = sorted(range(len(batch.rollouts)), key=lambda row: row % each)
        self.run_log.step(step, metrics, batch.samples(spread[: self.rl.log_samples]))
        if kept:
            files = RolloutFiles(self.run_log.folder.rollouts)
            self.run_log.keep(files, lambda: files.write(step, batch, kept))

    def learn(self, step: int, experience: Experience) -> tuple[Metrics, Tensor | None]:
        """Take the optimizer steps of a step: of the critic on all minibatches, then the policy.

        Beside each other where they share no device, and nothing that one does stops the other.
        Returns what `update_policy` does.
        """
        dealt, is_warm = self.minibatches.deal(experience.group_B), step > self.rl.critic_warmup
        if self.config.critic_config is None:
            return self.update_policy(experience, dealt)
        minibatches, learned = [*self.minibatches.cut(experience, dealt, CriticMinibatch)], None
        if is_warm and learn_beside(self.config):
            self.workers.begin("update_critic", "critic", minibatches)
            learned = self.update_policy(experience, dealt)
        with self.timer("update_critic"):
            updates = self.taken(self.workers.update_critic, minibatches)
        metrics = update_metrics("critic", updates)
        if not is_warm or self.ends_with(updates[-1]):
            return metrics, experience.old_logprobs_BT
        of_policy, logprobs_BT = learned or self.update_policy(experience, dealt)
        return metrics | of_policy, logprobs_BT

    def update_policy(
        self, experience: Experience, dealt: Sequence[Tensor]
    ) -> tuple[Metrics, Tensor | None]:
        """Take one optimizer step of the policy on each of the rows that were dealt.

        Updates that say what log-probs they started from are measured by the first of them: it
        alone starts from the policy that the engine had.

        Returns:
            The metrics, and the log-probs of that policy, NaN for rows whose nobody knows.
        """
        read: list[Tensor] = []

        def update(minibatch: Minibatch) -> Metrics:
            found = self.workers.update(minibatch)
            if found.logprobs_BT is not None:
                read.append(found.logprobs_BT)
            return found.metrics

        with self.timer("update"):
            minibatches = self.minibatches.cut(experience, dealt, Minibatch)
            updates = self.taken(update, minibatches)
        metrics = update_metrics("update", updates)
        if (control := self.minibatches.entropy) is not None and "update/entropy" in metrics:
            metrics["update/entropy_coef"] = control.coef
            control.heed(metrics["update/entropy"])
        if not read:
            return metrics, experience.old_logprobs_BT
        first, correction = experience.rows(dealt[0]), self.config.rollout_correction
        logprobs_BT = torch.full_like(experience.rollout_logprobs_BT, math.nan)
        logprobs_BT[dealt[0], : read[0].size(1)] = read[0]
        return merge(metrics, mismatch(first, read[0], correction)), logprobs_BT

    def taken(
        self, update: Callable[[MinibatchT], Metrics], minibatches: Iterable[MinibatchT]
    ) -> list[Metrics]:
        """Take one optimizer step on each minibatch, and none behind one that stops the run."""
        updates = []
        for minibatch in minibatches:
            updates.append(update(minibatch))
            if self.ends_with(updates[-1]):
                break
        return updates

    def ends_with(self, update: Metrics) -> bool:
        """Say whether an update was skipped that no other may follow."""
        return bool(update["skipped"]) and self.training.on_nonfinite == "stop"

    def evaluate(self, step: int) -> float | None:
        """Measure the model; returns what the best is chosen by, None where nothing is measured."""
        if not self.config.rolls_out:
            return None
        return self.evaluation.measure(step, self._note_failures)

    def _note_failures(self, step: int, scores: Scores) -> None:
        """Tell of rewards that failed, and end the run where `rl_config.on_reward_failure` does."""
        self.run_log.reward_failures(step, scores.failures)
        if lines := scores.fatal(self.rl.on_reward_failure):
            raise RewardError("\n".join(f"step {step}: {line}" for line in lines))

    def _export(self) -> None:
        """Export what the recorded steps have learned."""
        summary = self.run_log.summary
        if not self.config.learns:
            return
        self.run_log.console.stage("export")
        for role, folder in summary.exports.items():
            self.workers.export(role, folder, {"step": summary.steps, **summary.provenance})
        summary.model_step = summary.steps
        # What the switches of an export cost belongs to no step.
        self.workers.flush_metrics()

    def _keep_best(self, accuracy: float | None) -> None:
        """Keep an export that was evaluated as the best so far, before the next one replaces it."""
        summary = self.run_log.summary
        best = -math.inf if summary.accuracy_best is None else summary.accuracy_best
        if summary.model_step != summary.steps or accuracy is None or accuracy <= best:
            return

        def keep() -> None:
            for newest in summary.exports.values():
                self.workers.keep_export(newest, best_folder(newest))
            summary.accuracy_best, summary.model_best_step = accuracy, summary.steps

        self.run_log.keep("best model", keep)
