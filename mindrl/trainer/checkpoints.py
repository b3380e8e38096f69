"""Schedule and retention of checkpoints."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mindrl.checkpoint.commits import Commits, SavedFiles
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.errors import CheckpointError, OutputError
from mindrl.observability.metrics import Metrics
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.worker_handle import WorkerHandle

logger = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint with the best evaluation."""

    step: int
    accuracy: float


class Checkpoints:
    """Writes the checkpoints of a run, each during the rollout of the next step."""

    def __init__(
        self,
        workers: WorkerHandle,
        training: MegatronTrainingConfig,
        record: Mapping[str, object],
        run_log: RunLog,
    ) -> None:
        """Set the workers, the keys, the record stored with each checkpoint, and the log."""
        self.commits = Commits(run_log.folder.checkpoints)
        self.workers = workers
        self.training = training
        self.record = record
        self.run_log = run_log
        self.pending: tuple[int, Mapping[str, object], Best | None] | None = None
        self.is_committed = False
        """Whether the pending checkpoint is committed, but its costs not yet collected."""
        self.newest = 0
        """Step of the last checkpoint that exists or is being written; 0 after a failure."""
        self.committed = 0
        """Step of the last checkpoint that was committed or restored."""
        self.best: Best | None = None
        self.nbytes = 0
        """Bytes of a checkpoint; 0 before the first."""
        self.skipped = 0
        """Failures since the last metrics."""

    def is_due(self, step: int) -> bool:
        """Return whether the state after a step must be written."""
        interval = self.training.save_interval
        return bool(interval) and (step % interval == 0 or step == self.training.train_iters)

    def begin(self, step: int, state: Mapping[str, object], accuracy: float | None = None) -> None:
        """Write the state after a step during the next rollout.

        Args:
            step: From 1.
            state: Current state of the trainer.
            accuracy: That of an evaluation after that step.

        Raises:
            OutputError: There is no room for it, or no folder can be created.
        """
        assert self.pending is None, "the previous checkpoint is not finished"

        def start() -> None:
            self.nbytes = self.nbytes or self.workers.save_bytes()
            self.workers.begin_save(self.commits.begin(step, self.nbytes))
            best = self._best_with(step, accuracy)
            self.pending, self.newest = (step, {**state, "best": best}, best), step
            self.is_committed = False

        self._try(step, start)

    def commit_written(self) -> None:
        """Commit the pending checkpoint if all ranks have written it, without waiting."""
        if self.pending is None or self.is_committed:
            return
        step, state, best = self.pending
        if saved := self.commits.reported(step):
            # If this fails, `finish` retries and reports why.
            with suppress(OutputError):
                self._commit(step, saved, state, best)

    def finish(self) -> Metrics:
        """Commit the pending checkpoint, if any, and remove checkpoints that are not kept.

        Returns:
            Seconds of the slowest rank's write, and of the longest wait for it; or the number of
                skipped checkpoints.

        Raises:
            OutputError: It could not be written; the previous checkpoint is kept.
        """
        metrics: dict[str, float] = {}
        if self.pending is not None:
            (step, state, best), self.pending = self.pending, None
            self._try(step, lambda: metrics.update(self._finished(step, state, best)))
        if self.skipped:
            metrics["checkpoint/skipped"], self.skipped = float(self.skipped), 0
        return metrics

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Return which of `steps`, the existing checkpoints, newest first, are kept."""
        every = self.training.keep_every
        return {
            *steps[: self.training.keep_last],
            *(each for each in steps if every and not each % every),
            *([self.best.step] if self.best else []),
        }

    def load_best(self, best: Sequence[Any] | None) -> None:
        """Restore which checkpoint was the best."""
        self.best = None if best is None else Best(*best)

    def _best_with(self, step: int, accuracy: float | None) -> Best | None:
        """Return the best checkpoint, including one of this step."""
        if accuracy is None or not self.training.keep_best:
            return self.best
        # The best of another run folder is not available here.
        before = self.best if self.best and self.best.step in self.commits.steps() else None
        return before if before and before.accuracy >= accuracy else Best(step, accuracy)

    def _finished(self, step: int, state: Mapping[str, object], best: Best | None) -> Metrics:
        saved = self.workers.finish_save()
        if failures := [each.failure for each in saved if each.failure]:
            raise OutputError(failures[0])
        if not self.is_committed:
            self._commit(step, saved, state, best)
        return {
            "seconds/checkpoint_write": max(each.seconds for each in saved),
            "seconds/checkpoint_wait": max(each.waited_seconds for each in saved),
            "bytes/checkpoint": float(self.nbytes),
        }

    def _commit(
        self,
        step: int,
        saved: Sequence[SavedFiles],
        state: Mapping[str, object],
        best: Best | None,
    ) -> None:
        files = [file for rank in saved for file in rank.files]
        # A rank reports only its own models.
        updates = {role: count for rank in saved for role, count in rank.updates.items()}
        record = {**self.record, **state, "step": step, "updates": updates}
        self.commits.commit(step, files, record)
        self.is_committed = True
        before, self.committed = self.committed, step
        self.best, self.nbytes = best, sum(file.nbytes for file in files)
        try:
            # Later ones than the restored one were skipped: they are damaged.
            there = [each for each in self.commits.steps() if each <= before or each == step]
            self.commits.prune(self.kept(there))
        except OutputError as error:
            # The new checkpoint is complete.
            self.run_log.warn(f"{error}; the next checkpoint tries to remove it again")

    def _try(self, step: int, write: Callable[[], None]) -> None:
        """Write; on failure remove the step's files, and continue if configured."""
        try:
            write()
        except (CheckpointError, OutputError) as error:
            self.commits.abandon(step)
            if self.training.on_save_failure == "stop":
                raise
            self.newest = 0
            text = f"{error}; the run continues without it"
            if self.run_log.summary.skipped_checkpoints:
                logger.warning("%s", text)
            else:
                self.run_log.warn(f"{text}. The summary counts skipped checkpoints")
            self.run_log.summary.skipped_checkpoints += 1
            self.skipped += 1
