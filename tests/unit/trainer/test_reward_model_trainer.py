"""The loop that trains a reward model, on roles in memory; real ones: test_reward_models.py."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_roles import data, lines, run_log
from test_preference_trainer import PAIRS, JudgingRoles, answer, chosen, values

from mindrl.batch.prompts import GradedSteps, Prompt, ScoredAnswer
from mindrl.batch.sequences import Sequences, Values
from mindrl.observability.metrics import Metrics
from mindrl.trainer.reward_model_trainer import RewardModelTrainer, concordance, with_ends


class ScoringRoles(JudgingRoles):
    """Roles that read a tenth of the token before the position that is read."""

    def compute_scores(self, sequences: Sequences) -> Values:
        before_BT = torch.nn.functional.pad(sequences.tokens_BT[:, :-1], (1, 0))
        return Values(values_BT=sequences.response_mask_BT * before_BT / 10.0)


def learned(folder: Path, rows: tuple[Prompt, ...], **keys: object) -> tuple[Metrics, Sequences]:
    """Take a step on the first two rows; return its metrics and its update."""
    roles = ScoringRoles()
    trainer = RewardModelTrainer(chosen(**keys), data((), rows), roles, run_log(folder, 3))
    return trainer.step(1)[0], roles.minibatches[0]


def test_an_update_has_the_slopes_of_bradley_terry_with_margin_and_centring(tmp_path: Path) -> None:
    rows = tuple(
        replace(
            pair,
            margin=at / 2,
            chosen=answer(pair.uid, 20, 8),
            rejected=answer(pair.uid, 5, 6, 4 + at),
        )
        for at, pair in enumerate(PAIRS)
    )
    metrics, batch = learned(tmp_path, rows, loss="bradley_terry", center_rewards_coefficient=0.25)
    # Scores 0.8 of the chosen ones; 0.4 and 0.5 of the others, with margins 0 and 0.5.
    gaps, sums = [0.8 - 0.4, 0.8 - 0.5 - 0.5], [1.2, 1.3]
    losses = [
        math.log(1 + math.exp(-gap)) + total**2 / 4 for gap, total in zip(gaps, sums, strict=True)
    ]
    assert metrics["preference/loss"] == pytest.approx(sum(losses) / 2)
    assert metrics["preference/accuracy"] == 1.0
    assert metrics["preference/score_max"] == pytest.approx(0.8)
    assert metrics["preference/score_min"] == pytest.approx(0.4)
    pulls = [-1 / (1 + math.exp(gap)) for gap in gaps]
    centres = [total / 2 for total in sums]
    slopes = [(pull + centre) / 2 for pull, centre in zip(pulls, centres, strict=True)]
    slopes += [(centre - pull) / 2 for pull, centre in zip(pulls, centres, strict=True)]
    found_B = (batch.token_weights_BT * batch.slopes_BT).sum(dim=1)
    assert found_B.tolist() == pytest.approx(slopes)


def test_an_update_on_scores_has_the_slopes_of_the_squared_error(tmp_path: Path) -> None:
    shown = [answer(0, 20, 8), answer(1, 9, 3)]
    rows = tuple(
        ScoredAnswer(**values(each), score=wanted)
        for each, wanted in zip(shown, (1.0, 0.5), strict=True)
    )
    metrics, batch = learned(tmp_path, rows, loss="score")
    assert metrics["preference/loss"] == pytest.approx((0.2**2 + 0.2**2) / 2)
    assert metrics["preference/accuracy"] == 1.0
    found_B = (batch.token_weights_BT * batch.slopes_BT).sum(dim=1)
    assert found_B.tolist() == pytest.approx([-0.2, -0.2])


@pytest.mark.parametrize("mini_batch_size", [1, 2, 4])
def test_held_out_scores_are_compared_over_all_rows(mini_batch_size: int, tmp_path: Path) -> None:
    # The last tokens make the scores 0.1, 0.2, 0.3, which is the reverse of the data's order.
    rows = tuple(
        ScoredAnswer(**values(answer(at, 20, at + 1)), score=-float(at)) for at in range(3)
    )
    roles, log = ScoringRoles(), run_log(tmp_path, 3)
    asked = chosen(loss="score")
    rl = replace(asked.rl_config, mini_batch_size=mini_batch_size)
    trainer = RewardModelTrainer(replace(asked, rl_config=rl), data(rows, rows), roles, log)
    assert trainer.evaluate(1) == 0.0
    (update, *_) = trainer._cut(rows)
    assert ("preference/accuracy" in trainer.judged(update)[2]) == (mini_batch_size > 1)


def test_held_out_scores_that_are_all_equal_have_no_accuracy(tmp_path: Path) -> None:
    # Of the named set the order is right; the scores of the held-out file are equal.
    rows = tuple(ScoredAnswer(**values(answer(at, 20, at + 1)), score=float(at)) for at in range(3))
    equal = tuple(replace(each, score=0.5) for each in rows)
    asked, sets = chosen(loss="score"), data(equal, rows)
    log = run_log(tmp_path, 3)
    trainer = RewardModelTrainer(asked, sets, ScoringRoles(), log)
    assert trainer.evaluate(1) is None
    (shown,) = lines(tmp_path / "metrics.jsonl")
    assert "evaluation/loss" in shown
    assert "evaluation/accuracy" not in shown
    named = replace(sets, eval_sets={"named": sets.train})
    assert RewardModelTrainer(asked, named, ScoringRoles(), log).evaluate(1) == 1.0


def test_an_update_on_steps_reads_each_and_has_the_slopes_of_the_cross_entropy(
    tmp_path: Path,
) -> None:
    # The steps of the first answer end with tokens 12 and 8, that of the second with 3.
    shown = [answer(0, 20, 12, 6, 8), answer(1, 9, 3)]
    targets = [(False, False, False, True, False, True), (False, False, False, True)]
    rows = tuple(
        GradedSteps(**values(each) | {"targets": ends}, labels=labels)
        for each, ends, labels in zip(shown, targets, ((1.0, 0.0), (0.25,)), strict=True)
    )
    metrics, batch = learned(tmp_path, rows, loss="steps")
    odds, labels = [1.2, 0.8, 0.3], [1.0, 0.0, 0.25]
    chances = [1 / (1 + math.exp(-each)) for each in odds]
    losses = [
        -label * math.log(chance) - (1 - label) * math.log(1 - chance)
        for chance, label in zip(chances, labels, strict=True)
    ]
    assert metrics["preference/loss"] == pytest.approx(sum(losses) / 3)
    # All are taken for right; one is.
    assert metrics["preference/accuracy"] == pytest.approx(1 / 3)
    assert metrics["preference/margin"] == pytest.approx(1.2 - (0.8 + 0.3) / 2)
    slopes = [(chance - label) / 3 for chance, label in zip(chances, labels, strict=True)]
    found_BT = batch.token_weights_BT * batch.slopes_BT
    assert found_BT[batch.response_mask_BT].tolist() == pytest.approx(slopes)
    assert batch.response_mask_BT.nonzero().tolist() == [[0, 4], [0, 6], [1, 4]]


def test_a_score_is_read_at_the_end_of_the_answer_and_not_behind_it() -> None:
    batch = Sequences(
        tokens_BT=torch.tensor([[5, 6, 7, 9], [5, 8, 0, 0]]),
        lengths_B=torch.tensor([4, 2]),
        # The template writes a line break, 9, after the first answer.
        response_mask_BT=torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]]).bool(),
    )
    found = with_ends(batch)
    assert found.lengths_B.tolist() == [4, 3]
    assert found.response_mask_BT.int().tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0]]


def test_the_accuracy_of_scores_is_the_share_of_pairs_in_the_right_order() -> None:
    wanted_B = torch.tensor([0.0, 1.0, 1.0, 2.0])
    assert concordance(torch.tensor([0.1, 0.2, 0.3, 0.4]), wanted_B) == 1.0
    assert concordance(torch.tensor([0.4, 0.3, 0.2, 0.1]), wanted_B) == 0.0
    # Of five pairs one is a tie and one is in the wrong order.
    assert concordance(torch.tensor([0.2, 0.2, 0.1, 0.4]), wanted_B) == pytest.approx(0.7)
    assert concordance(wanted_B, torch.ones(4)) is None
