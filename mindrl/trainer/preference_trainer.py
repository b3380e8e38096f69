"""The loop of training on preferences in the data: DPO and its forms, and KTO.

Shapes: B sequences, T positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mindrl.algorithms.preference_losses import (
    SURROGATE,
    PreferenceLosses,
    kl_of_mismatched,
    label_losses,
    pair_losses,
)
from mindrl.algorithms.token_weights import sequence_mean_weights
from mindrl.batch.experience import SlopedSequences
from mindrl.batch.prompts import Demonstration, LabelledAnswer, PreferencePair, Prompt
from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.observability.metrics import Metrics, mean_metrics, merge, update_metrics
from mindrl.trainer.reference_logprobs import ReferenceLogprobs
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.supervised_trainer import AnswerTrainer, sequences_of
from mindrl.trainer.worker_handle import WorkerHandle


class PreferenceTrainer(AnswerTrainer):
    """Makes preferred answers more probable than others, compared with a reference."""

    throughput = ("throughput/tokens_per_second", "preference/tokens")
    columns = (
        ("loss", "preference/loss", ".4f"),
        ("accuracy", "preference/accuracy", ".3f"),
        ("margin", "preference/margin", ".3f"),
        ("norm", "update/grad_norm", ".3f"),
        ("tok/s", "throughput/tokens_per_second", ".0f"),
        ("step s", "seconds/step", ".1f"),
    )

    def __init__(
        self, config: RunConfig, data: RunData, workers: WorkerHandle, run_log: RunLog
    ) -> None:
        """Set all parts of a run."""
        super().__init__(config, data, workers, run_log)
        assert config.preference_config is not None, "the run is trained on preferences"
        self.section = config.preference_config
        self.reference: ReferenceLogprobs | None = None
        if (file := self.section.reference_file) is not None:
            self.reference = ReferenceLogprobs(config, Path(file), self._read_reference)

    def _run(self) -> None:
        """Compute the reference's log-probs that its file lacks; then run the steps."""
        if self.reference is not None:
            sets = [self.data.train, *self.held_out().values()]
            cuts = (rows for each in sets for rows in self._cut(each.prompts))
            batches = (sequences_of(answers_of(rows)) for rows in cuts)
            self.reference.complete(batches, self.check_interrupt)
            # Their cost belongs to no step.
            self.timer.flush()
            self.workers.flush_metrics()
        super()._run()

    def _cut(self, rows: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
        """Yield the rows of each update; a lone last row joins the rows before it.

        KTO compares each row with others. Updates of a run have equal numbers of rows.
        """
        count = self.rl.mini_batch_size
        ends = [*range(count, len(rows), count), len(rows)]
        if count > 1 and len(ends) > 1 and ends[-1] - ends[-2] == 1:
            del ends[-2]
        for first, end in zip([0, *ends], ends, strict=False):
            yield rows[first:end]

    def learn_from(self, step: int, data: Sequence[Prompt]) -> tuple[Metrics, None]:
        """Train on rows; the log-probs of answers are computed before each update."""
        judged: list[Metrics] = []

        def minibatches() -> Iterator[SlopedSequences]:
            for rows in self._cut(data):
                batch, found, metrics = self.judged(rows)
                judged.append(metrics)
                yield minibatch_of(batch, found.slopes_B)

        updates = self.run_updates(self._update, minibatches())
        found = update_metrics("update", updates)
        found.pop(f"update/{SURROGATE}", None)
        lengths = [len(each.token_ids) for row in data for each in answers_of([row])]
        own = {
            "preference/epoch": step * len(data) / len(self.data.train.prompts),
            "preference/tokens": float(sum(lengths)),
        }
        return merge(found, mean_metrics(judged), own), None

    def _update(self, minibatch: SlopedSequences) -> Metrics:
        with self.timer("update"):
            return self.workers.update(minibatch).metrics

    def evaluate(self, step: int) -> float | None:
        """Measure loss and accuracy on held-out rows; return the accuracy for the best model.

        It is that on the held-out file, or on the set named by `data_config.best_by`; None if no
        set has one.
        """
        found = {name: self._measured(each.prompts) for name, each in self.held_out().items()}
        for name, (loss, accuracy) in found.items():
            self.run_log.held_out_preferences(step, name, loss=loss, accuracy=accuracy)
        if not found:
            return None
        # The cost of an evaluation's switches belongs to no step.
        self.workers.flush_metrics()
        rated = {name: accuracy for name, (_, accuracy) in found.items() if accuracy is not None}
        return rated[self.best_set(rated)] if rated else None

    def _measured(self, prompts: Sequence[Prompt]) -> tuple[float, float | None]:
        """Return the mean loss and the accuracy on rows."""
        losses, right, total = 0.0, 0.0, 0
        for rows in self._cut(prompts):
            _, found, metrics = self.judged(rows)
            count = len(found.losses_B)
            losses += metrics["preference/loss"] * count
            right += metrics["preference/accuracy"] * count
            total += count
        return losses / total, right / total

    def judged(self, rows: Sequence[Prompt]) -> tuple[Sequences, PreferenceLosses, Metrics]:
        """Return the answers of rows as a batch, their loss, and its metrics."""
        batch = sequences_of(answers_of(rows))
        ratios_B = self._ratios(batch)
        if self.section.loss != "kto":
            judged = pair_losses(self.section, ratios_B, batch.response_mask_BT.sum(dim=1))
            chosen_B, rejected_B = judged.rewards_B.chunk(2)
            right_B, kl = right_of_pairs(chosen_B, rejected_B), None
        else:
            labels_B = torch.tensor([_labelled(each).is_desirable for each in rows])
            longest = self.training.seq_length
            shifted = sequences_of(mismatched([_labelled(each) for each in rows], longest))
            kl = kl_of_mismatched(self._ratios(shifted))
            judged = label_losses(self.section, ratios_B, labels_B, kl)
            chosen_B, rejected_B = judged.rewards_B[labels_B], judged.rewards_B[~labels_B]
            right_B = (ratios_B > kl) == labels_B
        metrics = {
            "preference/loss": judged.losses_B.mean().item(),
            "preference/accuracy": right_B.double().mean().item(),
        }
        if kl is not None:
            metrics["preference/kl"] = kl.item()
        return batch, judged, metrics | shown_rewards(chosen_B, rejected_B)

    def _ratios(self, batch: Sequences) -> Tensor:
        """Return the log-prob of each answer less that of the reference, [B], float64."""
        sums_B = torch.zeros(len(batch), dtype=torch.float64)
        if self.config.uses_reference:
            read = self._read_reference if self.reference is None else self.reference.of
            sums_B -= read(batch)
        # The policy runs last, because the update needs its weights.
        with self.timer("log_prob"):
            return sums_B + self.workers.compute_log_prob(batch).logprobs_BT.double().sum(dim=1)

    def _read_reference(self, batch: Sequences) -> Tensor:
        """Compute the reference's log-prob of each answer, [B], float64."""
        with self.timer("ref_log_prob"):
            return self.workers.compute_ref_log_prob(batch).logprobs_BT.double().sum(dim=1)


def right_of_pairs(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """Return 1 for each pair in the right order, and 1/2 for a tie, as before the first update."""
    return ((chosen_P - rejected_P).sign() + 1) / 2


def shown_rewards(chosen_B: Tensor, rejected_B: Tensor) -> Metrics:
    """Return the mean rewards of preferred answers and of others, and their difference."""
    metrics = {}
    if len(chosen_B):
        metrics["preference/chosen_reward"] = chosen_B.mean().item()
    if len(rejected_B):
        metrics["preference/rejected_reward"] = rejected_B.mean().item()
    if len(chosen_B) and len(rejected_B):
        metrics["preference/margin"] = (chosen_B.mean() - rejected_B.mean()).item()
    return metrics


def answers_of(rows: Sequence[Prompt]) -> list[Demonstration]:
    """Return the answers of rows; of pairs, all chosen ones before all rejected ones."""
    pairs = [each for each in rows if isinstance(each, PreferencePair)]
    if pairs:
        assert len(pairs) == len(rows), "all rows of a run have one form"
        return [*(each.chosen for each in pairs), *(each.rejected for each in pairs)]
    singles = [each for each in rows if isinstance(each, Demonstration)]
    assert len(singles) == len(rows), "the data of the run has been read"
    return singles


def mismatched(rows: Sequence[Demonstration], longest: int) -> list[Demonstration]:
    """Return each prompt with the answer to the prompt before it, cut to `longest` tokens."""
    made = []
    for own, other in zip(rows, (rows[-1], *rows[:-1]), strict=True):
        asked, start = own.targets.index(True), other.targets.index(True)
        targets = ((False,) * asked + other.targets[start:])[:longest]
        token_ids = (own.token_ids[:asked] + other.token_ids[start:])[:longest]
        made.append(replace(own, token_ids=token_ids, targets=targets))
    return made


def minibatch_of(batch: Sequences, slopes: Tensor) -> SlopedSequences:
    """Return an update with the gradient of a loss with these slopes.

    `slopes` are those of the answers, or of all target tokens, in their order.
    """
    mask_BT = batch.response_mask_BT
    weights_BT = sequence_mean_weights(mask_BT)
    # With one target per answer the two are the same.
    if len(slopes) == len(batch):
        slopes = slopes.repeat_interleave(mask_BT.sum(dim=1))
    slopes_BT = torch.zeros_like(weights_BT, dtype=torch.float64).masked_scatter(mask_BT, slopes)
    slopes_BT = (slopes_BT / weights_BT.double().where(mask_BT, 1.0)).float()
    return batch.into(SlopedSequences, token_weights_BT=weights_BT, slopes_BT=slopes_BT)


def _labelled(row: Prompt) -> LabelledAnswer:
    assert isinstance(row, LabelledAnswer), "the data of the run has been read"
    return row
