"""Steps that train on a rollout job's responses, received through a spool."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mindrl.batch.prompts import Prompt, sample_numbers
from mindrl.batch.rollouts import Rollouts
from mindrl.config.halves import version_of
from mindrl.config.run import RunConfig
from mindrl.errors import OutputError, SpoolError
from mindrl.observability.metrics import Metrics
from mindrl.spool.reader import StepReader
from mindrl.spool.records import Record
from mindrl.spool.weights import Weights
from mindrl.trainer.reward_manager import RatedBatch
from mindrl.trainer.rollout_files import unpacked
from mindrl.trainer.source.interface import Answering, Gathered, Source
from mindrl.trainer.weight_probe import known_logprobs, worst_gap


@dataclass(kw_only=True)
class SpoolGroups(Source[Gathered]):
    """Reads the records of each step from a spool, and publishes weights to it.

    Reward functions were applied by the rollout job; a reward model and the length penalty are
    added here.
    """

    config: RunConfig
    reader: StepReader
    answering: Answering
    committed: Callable[[], int]
    """Returns the last step that a checkpoint on disk contains."""
    check_interrupt: Callable[[], None] = lambda: None
    """Raises if the run must end."""
    ready: bool = False
    """Whether the initial weights of the run are in the spool."""
    newest: Rollouts | None = None
    """Rollouts of the last step, published with the weights after it."""

    def next(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Wait for the records of a step."""
        self.check_interrupt = check_interrupt
        if not self.ready:
            self.trained(step - 1)
            self.ready = True
        self.confirm(self.committed())
        weights, prompts = self._weights(step), step_prompts(self.answering, step)
        ids = responses_of(prompts, self.answering.sampling.samples_per_prompt)
        with self.answering.rewards.timer("rollout"):
            records = self.reader.take(step, ids, weights.name, check_interrupt)
        batch, age = self._batch(records), step - 1 - weights.version
        rollouts = self.newest = batch.rollouts
        if age:
            tokens = int(rollouts.response_mask_BT.sum())
            rollouts = rollouts.with_ages(torch.full((tokens,), age))
        rating = self.answering.rewards.compute(
            batch.prompts, rollouts, blocking=True, known=batch.rewarded
        )
        metrics = {
            "staleness/mean": float(age),
            "staleness/max": float(age),
            "spool/records_bytes": float(self.reader.spool.records.nbytes()),
        }
        return Gathered(
            prompts=batch.prompts,
            rollouts=rollouts,
            rating=rating,
            metrics=metrics,
            gap=worst_gap([record.gap for record in records]),
        )

    def trained(self, step: int) -> Metrics:
        """Publish the weights after a step, if they are due.

        On a full disk this waits until there is room.
        """
        if step % self.config.spool_config.publish_every:
            return {}
        began, spool, reported = time.perf_counter(), self.reader.spool, set[str]()
        known = None
        if self.newest is not None and self.config.rl_config.max_staleness:
            known = known_logprobs(self.answering.workers, self.newest)
        while True:
            try:
                spool.weights.publish(step, self._export, known)
                return {"seconds/publish": time.perf_counter() - began}
            except (OSError, OutputError) as error:
                if str(error) not in reported:
                    self.reader.notify(f"{error}; this job tries again until it can")
                reported.add(str(error))
            spool.wait(self.check_interrupt)

    def confirm(self, step: int) -> None:
        """Delete what is not needed after a checkpoint contains a step."""
        self.reader.confirm(step, version_of(self.config, step + 1))

    def _export(self, folder: Path) -> None:
        # No date and no commit, so that equal weights give equal files.
        self.answering.workers.export("actor", folder, {})

    def _weights(self, step: int) -> Weights:
        version, folders = version_of(self.config, step), self.reader.spool.weights
        if (found := folders.find(version)) is None:
            raise SpoolError(
                f"{folders.root} has no weights of step {version}, which generate step {step}: "
                "another run used this spool, or they were removed"
            )
        return found

    def _batch(self, records: Sequence[Record]) -> RatedBatch:
        return RatedBatch.joined([unpacked(record.content) for record in records])


def step_prompts(answering: Answering, step: int) -> list[Prompt]:
    """Return the prompts of a step, in order."""
    return answering.prompts_from((step - 1) * answering.per_step, answering.per_step)


def responses_of(prompts: Sequence[Prompt], samples: int) -> list[tuple[int, int]]:
    """Return the prompt's uid and the sample number of each response of a step."""
    uids = [prompt.uid for prompt in prompts for _ in range(samples)]
    return [*zip(uids, sample_numbers(uids), strict=True)]
