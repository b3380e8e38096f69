"""A run from its first step to its last, with recording, checkpoints, exports and evaluations.

Subclasses define how a step trains on its data, and how the model is evaluated.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from mindrl.checkpoint.fixed_models import fixed_models
from mindrl.config.resume import recorded_config
from mindrl.config.run import RunConfig
from mindrl.errors import (
    CallbackError,
    ClusterError,
    NonfiniteError,
    NoSignalError,
    ReshardError,
    RewardError,
    SkippedUpdatesError,
    StopRequestedError,
)
from mindrl.observability.console import StepColumns
from mindrl.observability.metrics import Metrics, measured, merge, without_tokens
from mindrl.observability.run_folder import best_folder
from mindrl.observability.timing import StageTimer
from mindrl.trainer.checkpoints import Checkpoints
from mindrl.trainer.minibatches import MinibatchT
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.source.interface import DataT, Source
from mindrl.trainer.step_checks import StepChecks
from mindrl.trainer.worker_handle import WorkerHandle

ResultT = TypeVar("ResultT")
"""Result of a step that is recorded with its metrics."""
_ENDS = (
    *(CallbackError, NonfiniteError, NoSignalError, RewardError),
    *(SkippedUpdatesError, StopRequestedError),
)
"""Errors that end a run, but leave its weights valid."""


class TrainingLoop(ABC, Generic[DataT, ResultT]):
    """Runs the steps of a run, and writes its checkpoints and exports."""

    source: Source[DataT]
    """Source of each step's data."""
    throughput: tuple[str, str]
    """Names of the metrics with the tokens per second of a step, and with its tokens."""
    columns: StepColumns
    """Columns of the step lines."""

    def __init__(
        self,
        config: RunConfig,
        workers: WorkerHandle,
        run_log: RunLog,
        *,
        max_logprob_gap: float | None,
    ) -> None:
        """Set the common parts; `max_logprob_gap` in nats, None accepts any finite gap."""
        self.config = config
        self.training, self.rl = config.megatron_training, config.rl_config
        self.workers = workers
        self.run_log = run_log
        record = {
            "config": recorded_config(config),
            "fixed_models": fixed_models(config),
            "inputs": run_log.inputs,
            **run_log.summary.provenance,
        }
        self.checkpoints = Checkpoints(workers, self.training, record, run_log)
        self.first_step = 1
        self.timer = StageTimer(run_log.console.stage)
        self.checks = StepChecks(
            max_logprob_gap, self.rl.logprob_gap_steps, stops=self.training.on_nonfinite == "stop"
        )
        self.check_interrupt: Callable[[], None] = lambda: None

    @abstractmethod
    def learn_from(self, step: int, data: DataT) -> tuple[Metrics, ResultT]:
        """Train on the data of a step; return the metrics and the result to record."""

    @abstractmethod
    def record(self, step: int, metrics: Metrics, result: ResultT) -> None:
        """Write the metrics and the result of a step."""

    @abstractmethod
    def evaluate(self, step: int) -> float | None:
        """Evaluate; return the value that determines the best model, None without evaluation."""

    def run(self, check_interrupt: Callable[[], None] = lambda: None) -> None:
        """Train from the first step to the last, evaluate, and export the trained models.

        `check_interrupt` raises StopRequestedError if the run was asked to stop, and CallbackError
        if a callback raised; trained models are then exported first.

        Raises:
            CallbackError: A callback raised.
            LogprobGapError: The rollout engine did not have the trainer's weights.
            RewardError: A reward function failed for all responses of a step.
            NoSignalError: No prompt of the data gives a signal.
            StopRequestedError: The run was asked to stop.
            SkippedUpdatesError: A model has skipped all updates for some steps.
            NonfiniteError: A number was not finite, and `on_nonfinite` is `stop`.
            MindrlError: A metric is not finite, or as raised by a role.
        """
        self.check_interrupt = check_interrupt
        try:
            self._run()
        except _ENDS as end:
            try:
                # No step is half trained: the weights are those of the last recorded step.
                self._save_now()
                if self.run_log.summary.steps != (self.run_log.summary.model_step or 0):
                    self._export()
            except (ClusterError, ReshardError) as error:
                # Raise the first error: for this one the caller would restart the workers.
                self.run_log.warn(f"cannot save the last steps: {error}")
                raise end from error
            raise

    def _run(self) -> None:
        training, rl, workers = self.training, self.rl, self.workers
        if self.first_step == 1:
            self.evaluate(0)
        if self.config.watched_steps:
            workers.record_memory(self.first_step <= self.config.watched_steps)
        for step in self.run_log.traced(range(self.first_step, training.train_iters + 1)):
            self.check_interrupt()
            metrics = self.recorded_step(step)
            self._note_memory(step)
            for warning in self.checks.warnings(step, metrics):
                self.run_log.warn(warning)
            last, accuracy = step == training.train_iters, None
            tests = last or (rl.test_freq and step % rl.test_freq == 0)
            # The weights are on the device after the update; an evaluation offloads them.
            if last or (training.exports_every and step % training.exports_every == 0):
                self._export()
            if tests and self.config.learns:
                accuracy = self.evaluate(step)
                self._keep_best(accuracy)
            if self.checkpoints.is_due(step):
                self.checkpoints.begin(step, self.state(), accuracy)
        self.checkpoints.finish()

    def recorded_step(self, step: int) -> Metrics:
        """Run a step and record it; return its metrics."""
        metrics, result = self.step(step)
        metrics |= self.checkpoints.finish()
        self.record(step, metrics, result)
        return metrics

    def step(self, step: int) -> tuple[Metrics, ResultT]:
        """Take the data of a step, and train on it once."""
        with self.timer("step"):
            data = self.source.next(step, self.check_interrupt)
            computed, result = self.learn_from(step, data)
            computed |= self.source.trained(step)
        return measured(merge(computed, self.spent(computed))), result

    def spent(self, computed: Metrics) -> Metrics:
        """Return the time and memory of a finished step, and its tokens per second."""
        spent = merge(self.timer.flush(), self.workers.flush_metrics())
        rate, tokens = self.throughput
        return spent | {rate: computed[tokens] / spent["seconds/step"]}

    def _note_memory(self, step: int) -> None:
        """Record the memory of a step at the start of the run."""
        if step <= (watched := self.config.watched_steps):
            moments = self.workers.flush_moments()
            if any(moments):
                self.run_log.memory(step, moments)
            self.workers.record_memory(step < watched)

    def state(self) -> dict[str, object]:
        """Return the state for a resume after this step, without the models."""
        summary = self.run_log.summary
        return {
            "summary": summary.counts(),
            "checks": self.checks.counts(),
            "source": self.source.state(summary.steps),
        }

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step, with the available parts of a state.

        The models are already restored.
        """
        self.first_step = step + 1
        self.checkpoints.newest = self.checkpoints.committed = step
        loaders = self.loaders()
        for part in loaders.keys() & state.keys():
            loaders[part](state[part])
        self.source.load_state(step, state.get("source", {}))
        # The cost of the switches of a restore belongs to no step.
        self.workers.flush_metrics()

    def loaders(self) -> dict[str, Callable[[Any], None]]:
        """Return the function that restores each part of a state, by name."""
        return {
            "summary": self.run_log.summary.load_counts,
            "checks": self.checks.load_counts,
            "best": self.checkpoints.load_best,
        }

    def _save_now(self) -> None:
        """Write a checkpoint of the last recorded step, unless there is one."""
        self.checkpoints.finish()
        step = self.run_log.summary.steps
        if self.training.save_interval and step > self.checkpoints.newest:
            self.checkpoints.begin(step, self.state())
            self.checkpoints.finish()

    def run_updates(
        self, update: Callable[[MinibatchT], Metrics], minibatches: Iterable[MinibatchT]
    ) -> list[Metrics]:
        """Run one optimizer step on each minibatch, until one ends the run.

        Without a token, as a filter may leave it, a minibatch has no means over tokens.
        """
        updates = []
        for minibatch in minibatches:
            found, has_tokens = update(minibatch), bool(minibatch.token_weights_BT.any())
            updates.append(found if has_tokens else without_tokens(found))
            if self.ends_with(found):
                break
        return updates

    def ends_with(self, update: Metrics) -> bool:
        """Return whether a skipped update must end the run."""
        return bool(update["skipped"]) and self.training.on_nonfinite == "stop"

    def _export(self) -> None:
        """Export the models as of the last recorded step."""
        summary = self.run_log.summary
        if not self.config.learns:
            return
        self.run_log.console.stage("export")
        for role, folder in summary.exports.items():
            self.workers.export(role, folder, {"step": summary.steps, **summary.provenance})
        summary.model_step = summary.steps
        # The cost of an export's switches belongs to no step.
        self.workers.flush_metrics()

    def _keep_best(self, accuracy: float | None) -> None:
        """Keep an export with the best evaluation so far, before the next one replaces it."""
        summary = self.run_log.summary
        best = -math.inf if summary.accuracy_best is None else summary.accuracy_best
        if summary.model_step != summary.steps or accuracy is None or accuracy <= best:
            return

        def keep() -> None:
            for role, newest in summary.exports.items():
                self.workers.keep_export(role, newest, best_folder(newest))
            summary.accuracy_best, summary.model_best_step = accuracy, summary.steps

        self.run_log.keep("best model", keep)
