"""The loop of supervised fine-tuning on the answers in the data.

Shapes: B sequences, T positions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mindrl.algorithms.answer_loss import ANSWER_LOSS
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import WeightedSequences
from mindrl.batch.prompts import Demonstration, Prompt
from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.data.order import prompt_order
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.observability.metrics import Metrics, merge, update_metrics
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.source.demonstrations import Demonstrations
from mindrl.trainer.training_loop import TrainingLoop
from mindrl.trainer.worker_handle import WorkerHandle

_LOSS = f"update/{ANSWER_LOSS}"


class AnswerTrainer(TrainingLoop[Sequence[Prompt], None]):
    """Trains on answers in rows, step by step, without samples to record."""

    def __init__(
        self, config: RunConfig, data: RunData, workers: WorkerHandle, run_log: RunLog
    ) -> None:
        """Set all parts of a run."""
        super().__init__(config, workers, run_log, max_logprob_gap=None)
        self.data = data
        self.source = Demonstrations(
            prompts=data.train.prompts,
            order=prompt_order(config, data.train_sets),
            per_step=self.training.global_batch_size,
        )

    def record(self, step: int, metrics: Metrics, result: None) -> None:  # noqa: ARG002
        """Write the metrics: there are no samples."""
        self.run_log.step(step, metrics, [])

    def held_out(self) -> dict[str | None, PromptSet]:
        """Return the held-out sets by their names; None for the held-out file, which is first."""
        sets: dict[str | None, PromptSet] = {}
        if self.data.test is not None:
            sets[None] = self.data.test
        return sets | dict(self.data.eval_sets.items())

    def best_set(self, measured: Iterable[str | None]) -> str | None:
        """Return the name of the measured set that determines the best model."""
        names, best_by = [*measured], self.config.data_config.best_by
        return best_by if best_by in names else names[0]


class SupervisedTrainer(AnswerTrainer):
    """Increases the probability of given answers."""

    throughput = ("throughput/tokens_per_second", "sft/tokens")
    columns = (
        ("loss", "sft/loss", ".4f"),
        ("norm", "update/grad_norm", ".3f"),
        ("lr", "update/lr", ".1e"),
        ("epoch", "sft/epoch", ".2f"),
        ("tok/s", "throughput/tokens_per_second", ".0f"),
        ("step s", "seconds/step", ".1f"),
    )

    def learn_from(self, step: int, data: Sequence[Prompt]) -> tuple[Metrics, None]:
        """Train on rows."""
        count = self.rl.mini_batch_size
        rows = [data[first : first + count] for first in range(0, len(data), count)]
        batches = [minibatch_of(sequences_of(each)) for each in rows]
        if self.config.teacher_config is not None:
            with self.timer("teacher_log_prob"):
                batches = [self._taught(*each) for each in zip(batches, rows, strict=True)]
        with self.timer("update"):
            updates = self.run_updates(self._update, batches)
        found = update_metrics("update", updates)
        if _LOSS in found:
            found["sft/loss"] = found.pop(_LOSS)
        own = {
            "sft/epoch": step * len(data) / len(self.data.train.prompts),
            "sft/tokens": float(sum(int(each.lengths_B.sum()) for each in batches)),
            "sft/target_tokens": float(sum(int(each.response_mask_BT.sum()) for each in batches)),
        }
        return merge(found, own), None

    def _taught(self, minibatch: WeightedSequences, prompts: Sequence[Prompt]) -> WeightedSequences:
        """Add the most probable tokens of each row's teacher at the targets."""
        teacher, sequences = self.config.teacher_config, minibatch.into(Sequences)
        if teacher is not None and teacher.models:
            numbers = torch.tensor([teacher.number(each.source) for each in prompts])
            sequences = replace(sequences, teacher_B=numbers)
        found = self.workers.compute_teacher_log_prob(sequences)
        return replace(minibatch, likely=found.likely)

    def _update(self, minibatch: WeightedSequences) -> Metrics:
        return self.workers.update(minibatch).metrics

    def evaluate(self, step: int) -> float | None:
        """Measure the loss on held-out rows; return the value that determines the best model.

        It is the negative loss on the held-out file, or on the set named by `data_config.best_by`.
        """
        losses = {name: self._loss(each.prompts) for name, each in self.held_out().items()}
        for name, loss in losses.items():
            self.run_log.held_out_loss(step, name, loss)
        if not losses:
            return None
        # The cost of an evaluation's switches belongs to no step.
        self.workers.flush_metrics()
        return -losses[self.best_set(losses)]

    def _keep_best(self, accuracy: float | None) -> None:
        """Keep no best export: the best is defined by accuracy, which is not measured."""

    def _loss(self, prompts: Sequence[Prompt]) -> float:
        """Return the mean negative log-prob of the target tokens, in nats."""
        count, total, targets = self.rl.mini_batch_size, 0.0, 0
        for first in range(0, len(prompts), count):
            batch = sequences_of(prompts[first : first + count])
            logprobs_BT = self.workers.compute_log_prob(batch).logprobs_BT
            total -= logprobs_BT.double().sum().item()
            targets += int(batch.response_mask_BT.sum())
        return total / targets


def sequences_of(prompts: Sequence[Prompt]) -> Sequences:
    """Return demonstrations as a batch of sequences."""
    shown = [each for each in prompts if isinstance(each, Demonstration)]
    assert len(shown) == len(prompts), "the data of a supervised run has been read"
    batch = Sequences(
        tokens_BT=_padded([torch.tensor(each.token_ids) for each in shown]),
        lengths_B=torch.tensor([len(each.token_ids) for each in shown]),
        response_mask_BT=_padded([torch.tensor(each.targets) for each in shown]),
    )
    return batch.with_images([each.images for each in shown])


def minibatch_of(batch: Sequences) -> WeightedSequences:
    """Return an update in which all target tokens have the same weight."""
    weights_BT = token_mean_weights(batch.response_mask_BT)
    return batch.into(WeightedSequences, token_weights_BT=weights_BT)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)
