"""The loop that trains a reward model on preferences or scores in the data.

Shapes: B sequences, T positions, P pairs, S steps of answers.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mindrl.algorithms.preference_losses import (
    PreferenceLosses,
    ranking_losses,
    score_losses,
    step_losses,
)
from mindrl.batch.prompts import GradedSteps, PreferencePair, Prompt, ScoredAnswer
from mindrl.batch.sequences import Sequences
from mindrl.observability.metrics import Metrics
from mindrl.trainer.preference_trainer import (
    PreferenceTrainer,
    answers_of,
    right_of_pairs,
    shown_rewards,
)
from mindrl.trainer.supervised_trainer import sequences_of


class RewardModelTrainer(PreferenceTrainer):
    """Gives preferred answers and right steps higher scores, or scores answers as the data does."""

    def judged(self, rows: Sequence[Prompt]) -> tuple[Sequences, PreferenceLosses, Metrics]:
        """Return the answers of rows as a batch, their loss, and its metrics."""
        of_steps = self.section.loss == "steps"
        batch = with_ends(sequences_of(answers_of(rows)), of_steps=of_steps)
        with self.timer("log_prob"):
            values_BT = self.workers.compute_scores(batch).values_BT.double()
        # In the order of the answers, and of the steps of each.
        scores_B = values_BT[batch.response_mask_BT]
        if of_steps:
            labels = [label for row in rows for label in _graded(row).labels]
            labels_S = torch.tensor(labels, dtype=torch.float64)
            found = step_losses(scores_B, labels_S)
            is_right_S = labels_S > 0.5
            accuracy = ((scores_B > 0) == is_right_S).double().mean().item()
            shown = shown_rewards(scores_B[is_right_S], scores_B[~is_right_S])
            return batch, found, self._metrics(found, accuracy) | shown
        if self.section.loss == "score":
            wanted_B = torch.tensor([_wanted(row) for row in rows], dtype=torch.float64)
            found = score_losses(scores_B, wanted_B)
            return batch, found, self._metrics(found, concordance(scores_B, wanted_B))
        margins_P = torch.tensor([_margin(row) for row in rows], dtype=torch.float64)
        found = ranking_losses(self.section, scores_B, margins_P)
        chosen_P, rejected_P = scores_B.chunk(2)
        accuracy = right_of_pairs(chosen_P, rejected_P).mean().item()
        metrics = self._metrics(found, accuracy) | shown_rewards(chosen_P, rejected_P)
        return batch, found, metrics

    def _measured(self, prompts: Sequence[Prompt]) -> tuple[float, float | None]:
        """Return the mean loss and the accuracy on rows; scores are compared over all of them.

        The accuracy is None if the data has no two different scores.
        """
        if self.section.loss != "score":
            return super()._measured(prompts)
        judged = [self.judged(rows)[1] for rows in self._cut(prompts)]
        wanted_B = torch.tensor([_wanted(row) for row in prompts], dtype=torch.float64)
        accuracy = concordance(torch.cat([each.rewards_B for each in judged]), wanted_B)
        losses_B = torch.cat([each.losses_B for each in judged])
        return losses_B.mean().item(), accuracy

    def _metrics(self, found: PreferenceLosses, accuracy: float | None) -> Metrics:
        return {
            "preference/loss": found.losses_B.mean().item(),
            **({} if accuracy is None else {"preference/accuracy": accuracy}),
            "preference/score_min": found.rewards_B.min().item(),
            "preference/score_mean": found.rewards_B.mean().item(),
            "preference/score_max": found.rewards_B.max().item(),
        }


def with_ends(batch: Sequences, *, of_steps: bool = False) -> Sequences:
    """Cut each sequence at the end of its answer, and add a position, which reads the value there.

    This cuts off text that a template writes after an answer: sampled responses lack it. With
    `of_steps` the position after each target is read.
    """
    places_T = torch.arange(batch.tokens_BT.size(1) + 1)
    ends_B = (batch.response_mask_BT * places_T[1:]).amax(dim=1)
    found = replace(
        batch,
        tokens_BT=pad(batch.tokens_BT, (0, 1)),
        lengths_B=ends_B + 1,
        response_mask_BT=places_T == ends_B[:, None],
    )
    if of_steps:
        return replace(found, response_mask_BT=pad(batch.response_mask_BT, (1, 0)))
    return found


def concordance(scores_B: Tensor, wanted_B: Tensor) -> float | None:
    """Return the fraction of pairs of answers that are in the right order; equal scores count half.

    None if the data has no two different scores.
    """
    right, pairs = 0.0, 0
    # Row by row: a matrix of all held-out answers would be large.
    for score, wanted in zip(scores_B, wanted_B, strict=True):
        lower_N = scores_B[wanted_B < wanted]
        right += ((score - lower_N).sign() + 1).sum().item() / 2
        pairs += len(lower_N)
    return right / pairs if pairs else None


def _wanted(row: Prompt) -> float:
    assert isinstance(row, ScoredAnswer), "the data of the run has been read"
    return row.score


def _graded(row: Prompt) -> GradedSteps:
    assert isinstance(row, GradedSteps), "the data of the run has been read"
    return row


def _margin(row: Prompt) -> float:
    assert isinstance(row, PreferencePair), "the data of the run has been read"
    return row.margin
