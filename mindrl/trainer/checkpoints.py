"""When a run's state is written, and which of it is kept."""

from collections.abc import Mapping, Sequence

from mindrl.checkpoint.commits import Commits
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.observability.metrics import Metrics
from mindrl.trainer.colocated_actor import ColocatedActor


class Checkpoints:
    """Writes the checkpoints of a run, each beside the rollout of the step behind it."""

    def __init__(
        self,
        commits: Commits,
        workers: ColocatedActor,
        training: MegatronTrainingConfig,
        record: Mapping[str, object],
    ) -> None:
        """Take the place, what writes, the keys, and what each checkpoint says of its run."""
        self.commits = commits
        self.workers = workers
        self.training = training
        self.record = record
        self.pending: tuple[int, Mapping[str, object]] | None = None
        self.newest = 0
        """The last step that there is a checkpoint of, or one has been begun."""

    def is_due(self, step: int) -> bool:
        """Say whether the state behind a step is to be written."""
        interval = self.training.save_interval
        return bool(interval) and (step % interval == 0 or step == self.training.train_iters)

    def begin(self, step: int, state: Mapping[str, object]) -> None:
        """Have the state behind a step written during the next rollout.

        Args:
            step: From 1.
            state: Of the trainer, as it is now.

        Raises:
            OutputError: The folder cannot be made.
        """
        assert self.pending is None, "the checkpoint before it has not been finished"
        self.workers.begin_save(self.commits.begin(step))
        self.pending, self.newest = (step, state), step

    def finish(self) -> Metrics:
        """Commit what was begun, if anything was, and remove what is no longer kept.

        Returns:
            Seconds that the slowest rank wrote, and that any waited for it.

        Raises:
            OutputError: It could not be written; the checkpoint before it is still there.
        """
        if self.pending is None:
            return {}
        (step, state), self.pending = self.pending, None
        saved = self.workers.finish_save()
        files = [file for rank in saved for file in rank.files]
        record = {**self.record, **state, "step": step, "updates": saved[0].updates}
        self.commits.commit(step, files, record)
        self.commits.prune(self.kept(self.commits.steps()))
        return {
            "seconds/checkpoint_write": max(each.seconds for each in saved),
            "seconds/checkpoint_wait": max(each.waited_seconds for each in saved),
            "bytes/checkpoint": float(sum(file.nbytes for file in files)),
        }

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Return the steps whose checkpoints stay, of those that there are, the newest first."""
        every = self.training.keep_every
        return {
            *steps[: self.training.keep_last],
            *(each for each in steps if every and not each % every),
        }
