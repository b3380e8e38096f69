"""When a run's state is written, and which of it is kept."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mindrl.checkpoint.commits import Commits, SavedFiles
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.errors import CheckpointError, OutputError
from mindrl.observability.metrics import Metrics
from mindrl.trainer.colocated_actor import ColocatedActor
from mindrl.trainer.run_log import RunLog

logger = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint behind the best evaluation."""

    step: int
    accuracy: float


class Checkpoints:
    """Writes the checkpoints of a run, each beside the rollout of the step behind it."""

    def __init__(
        self,
        workers: ColocatedActor,
        training: MegatronTrainingConfig,
        record: Mapping[str, object],
        run_log: RunLog,
    ) -> None:
        """Take what writes, the keys, what each says of its run, and where failures are told."""
        self.commits = Commits(run_log.folder.checkpoints)
        self.workers = workers
        self.training = training
        self.record = record
        self.run_log = run_log
        self.pending: tuple[int, Mapping[str, object], Best | None] | None = None
        self.is_committed = False
        """What is pending, though the workers have not been asked what it cost."""
        self.newest = 0
        """The last step that there is a checkpoint of, or one has been begun; 0 after a failure."""
        self.best: Best | None = None
        self.nbytes = 0
        """Of a checkpoint; 0 before the first."""
        self.skipped = 0
        """Failures since the last metrics."""

    def is_due(self, step: int) -> bool:
        """Say whether the state behind a step is to be written."""
        interval = self.training.save_interval
        return bool(interval) and (step % interval == 0 or step == self.training.train_iters)

    def begin(self, step: int, state: Mapping[str, object], accuracy: float | None = None) -> None:
        """Have the state behind a step written during the next rollout.

        Args:
            step: From 1.
            state: Of the trainer, as it is now.
            accuracy: Of an evaluation behind that step.

        Raises:
            OutputError: There is no room for it, or no folder can be made.
        """
        assert self.pending is None, "the checkpoint before it has not been finished"

        def start() -> None:
            self.nbytes = self.nbytes or self.workers.save_bytes()
            self.workers.begin_save(self.commits.begin(step, self.nbytes))
            best = self._best_with(step, accuracy)
            self.pending, self.newest = (step, {**state, "best": best}, best), step
            self.is_committed = False

        self._try(step, start)

    def commit_written(self) -> None:
        """Commit what was begun once all ranks have written it, while they are at other work."""
        if self.pending is None or self.is_committed:
            return
        step, state, best = self.pending
        if saved := self.commits.reported(step):
            # Where it cannot be, `finish` tries again, and says why.
            with suppress(OutputError):
                self._commit(step, saved, state, best)
                self.is_committed = True

    def finish(self) -> Metrics:
        """Commit what was begun, if anything was, and remove what is no longer kept.

        Returns:
            Seconds that the slowest rank wrote, and that any waited for it; or how many could not
            be written.

        Raises:
            OutputError: It could not be written; the checkpoint before it is still there.
        """
        metrics: dict[str, float] = {}
        if self.pending is not None:
            (step, state, best), self.pending = self.pending, None
            self._try(step, lambda: metrics.update(self._finished(step, state, best)))
        if self.skipped:
            metrics["checkpoint/skipped"], self.skipped = float(self.skipped), 0
        return metrics

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Return the steps whose checkpoints stay, of those that there are, the newest first."""
        every = self.training.keep_every
        return {
            *steps[: self.training.keep_last],
            *(each for each in steps if every and not each % every),
            *([self.best.step] if self.best else []),
        }

    def take_best(self, best: Sequence[Any] | None) -> None:
        """Go on from what was the best."""
        self.best = None if best is None else Best(*best)

    def _best_with(self, step: int, accuracy: float | None) -> Best | None:
        """Return which is the best once there is one of this step."""
        if accuracy is None or not self.training.keep_best:
            return self.best
        # One of another run folder is not here.
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
        # A rank knows of the models that it has.
        updates = {role: count for rank in saved for role, count in rank.updates.items()}
        record = {**self.record, **state, "step": step, "updates": updates}
        self.commits.commit(step, files, record)
        self.best, self.nbytes = best, sum(file.nbytes for file in files)
        self.commits.prune(self.kept(self.commits.steps()))

    def _try(self, step: int, write: Callable[[], None]) -> None:
        """Write, or remove what there is of a step, and go on without it where that is wanted."""
        try:
            write()
        except (CheckpointError, OutputError) as error:
            self.commits.abandon(step)
            if self.training.on_save_failure == "stop":
                raise
            self.newest = 0
            text = f"{error}; the run goes on without it"
            if self.run_log.summary.skipped_checkpoints:
                logger.warning("%s", text)
            else:
                self.run_log.warn(f"{text}; the summary counts such checkpoints")
            self.run_log.summary.skipped_checkpoints += 1
            self.skipped += 1
