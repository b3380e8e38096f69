"""The loop of training on preferences on roles in memory: batches, slopes, metrics, resume."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import MemoryRoles, asked_at, config, data, lines, run_log

from mindrl.algorithms.preference_losses import SURROGATE
from mindrl.batch.prompts import Demonstration, LabelledAnswer, PreferencePair
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.config.preference import PreferenceConfig, PreferenceForm
from mindrl.config.run import RunConfig
from mindrl.config.supervision import supervised
from mindrl.errors import StopRequestedError
from mindrl.trainer.preference_trainer import PreferenceTrainer, mismatched


def answer(uid: int, *tokens: int) -> Demonstration:
    return Demonstration(
        uid=uid,
        token_ids=(uid + 1, 9, *tokens),
        text=f"row {uid}",
        answer="",
        targets=(False, False, *(True,) * len(tokens)),
    )


def values(row: Demonstration) -> dict[str, Any]:
    return {each.name: getattr(row, each.name) for each in fields(row)}


def pair(uid: int) -> PreferencePair:
    chosen, rejected = answer(uid, 20, 7), answer(uid, 30 + uid, 21, 7)
    return PreferencePair(
        uid=uid,
        token_ids=rejected.token_ids,
        text=chosen.text,
        answer="",
        chosen=chosen,
        rejected=rejected,
    )


PAIRS = tuple(map(pair, range(4)))


class JudgingRoles(MemoryRoles):
    """Roles that give token n the log-prob -n / 10, and the reference -1 for each token."""

    loss = SURROGATE

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        self.calls.append("log-probs")
        logprobs_BT = sequences.response_mask_BT * sequences.tokens_BT / -10.0
        return Logprobs(logprobs_BT=logprobs_BT)

    def compute_ref_log_prob(self, sequences: Sequences) -> Logprobs:
        self.calls.append("reference log-probs")
        return self._scored(sequences, -1.0)


def chosen(**preference: object) -> RunConfig:
    plain = config(train_iters=3, no_shuffle=True, mini_batch_size=2, test_freq=2)
    rl = replace(plain.rl_config, n_samples_per_prompt=8)
    section = PreferenceConfig(**preference)
    return supervised(replace(plain, rl_config=rl, preference_config=section))


def test_an_update_has_both_answers_of_its_pairs_and_dpos_slopes(tmp_path: Path) -> None:
    roles, log = JudgingRoles(), run_log(tmp_path, 3)
    PreferenceTrainer(chosen(beta=0.5), data(PAIRS[:3], PAIRS), roles, log).run()
    log.close()
    batch = roles.minibatches[0]
    assert batch.tokens_BT[:, 0].tolist() == [1, 2, 1, 2]
    # Log-ratios by hand: chosen -2.7 + 2; rejected -5.8 + 3 and -5.9 + 3.
    margins = [-0.7 + 2.8, -0.7 + 2.9]
    slopes = [-0.5 / (1 + math.exp(0.5 * each)) / 2 for each in margins]
    found = (batch.token_weights_BT * batch.slopes_BT)[:, 2].tolist()
    assert found == pytest.approx([*slopes, *(-each for each in slopes)])
    steps = [line for line in lines(tmp_path / "metrics.jsonl") if "preference/loss" in line]
    first = steps[0]
    losses = [math.log(1 + math.exp(-0.5 * each)) for each in margins]
    assert first["preference/loss"] == pytest.approx(sum(losses) / 2)
    assert first["preference/accuracy"] == 1.0
    assert first["preference/chosen_reward"] == pytest.approx(-0.35)
    assert first["preference/rejected_reward"] == pytest.approx(-1.425)
    assert first["preference/margin"] == pytest.approx(1.075)
    assert first["preference/tokens"] == 2 * (4 + 5)
    assert [line["preference/epoch"] for line in steps] == [0.5, 1.0, 1.5]
    assert f"update/{SURROGATE}" not in first
    held_out = [line for line in lines(tmp_path / "metrics.jsonl") if "evaluation/loss" in line]
    assert [line["step"] for line in held_out] == [0, 2, 3]
    assert held_out[0]["evaluation/accuracy"] == 1.0


@pytest.mark.parametrize(
    ("form", "loss"), [("ipo", 1.2**2), ("sigmoid_norm", math.log(1 + math.exp(0.1)))]
)
def test_rewards_are_of_whole_answers_though_the_loss_is_of_their_mean_tokens(
    form: PreferenceForm, loss: float, tmp_path: Path
) -> None:
    """As TRL 1.16 computes its metrics `rewards/..`."""
    made = replace(PAIRS[0], rejected=answer(0, 11, 11, 11, 12, 12, 12))
    log = run_log(tmp_path, 3)
    trainer = PreferenceTrainer(chosen(loss=form, beta=0.5), data((), [made]), JudgingRoles(), log)
    metrics = trainer.step(1)[0]
    # Log-ratios: chosen -2.7 + 2 = -0.7, rejected -6.9 + 6 = -0.9: the chosen answer is above.
    assert metrics["preference/chosen_reward"] == pytest.approx(0.5 * -0.7)
    assert metrics["preference/rejected_reward"] == pytest.approx(0.5 * -0.9)
    # Log-probs are float32.
    assert metrics["preference/margin"] == pytest.approx(0.5 * 0.2, abs=1e-6)
    assert metrics["preference/accuracy"] == 1.0
    # By token: -0.35 and -0.15; the chosen answer is below.
    assert metrics["preference/loss"] == pytest.approx(loss)


def test_without_a_reference_none_is_asked_and_equal_rewards_count_as_half(tmp_path: Path) -> None:
    class Undecided(JudgingRoles):
        def compute_log_prob(self, sequences: Sequences) -> Logprobs:
            return self._scored(sequences, 0.0)

    roles, log = Undecided(), run_log(tmp_path, 3)
    given = chosen(reference_free=True)
    metrics = PreferenceTrainer(given, data((), PAIRS), roles, log).step(1)[0]
    assert metrics["preference/accuracy"] == 0.5
    assert "reference log-probs" not in roles.calls


def test_the_kl_is_estimated_on_each_prompt_with_the_answer_before_it(tmp_path: Path) -> None:
    rows = [answer(0, 20, 7), answer(1, 21, 22, 7)]
    shifted = mismatched(rows, 4)
    assert [each.token_ids for each in shifted] == [(1, 9, 21, 22), (2, 9, 20, 7)]
    assert shifted[0].targets == (False, False, True, True)
    labelled = [
        LabelledAnswer(**values(each), is_desirable=at == 0) for at, each in enumerate(rows)
    ]
    log = run_log(tmp_path, 3)
    trainer = PreferenceTrainer(chosen(loss="kto"), data((), labelled), JudgingRoles(), log)
    metrics = trainer.step(1)[0]
    # Log-ratios -0.7 and -2.0 have a negative mean.
    assert metrics["preference/kl"] == 0.0
    assert metrics["preference/accuracy"] == 0.5
    losses = [1 - 1 / (1 + math.exp(0.07)), 1 - 1 / (1 + math.exp(-0.2))]
    assert metrics["preference/loss"] == pytest.approx(sum(losses) / 2)


def test_a_lone_held_out_row_is_compared_with_the_rows_before_it(tmp_path: Path) -> None:
    class Likely(JudgingRoles):
        def compute_log_prob(self, sequences: Sequences) -> Logprobs:
            found = super().compute_log_prob(sequences)
            return replace(found, logprobs_BT=-found.logprobs_BT)

    rows = [
        LabelledAnswer(**values(answer(at, token)), is_desirable=at < 2)
        for at, token in enumerate((2, 6, 7))
    ]
    keys, log = chosen(loss="kto", reference_free=True), run_log(tmp_path, 3)
    trainer = PreferenceTrainer(keys, data(rows, rows), Likely(), log)
    # Log-ratios 0.2, 0.6 and 0.7 beside their mean, 0.5; the last row's own would be 0.7.
    assert trainer.evaluate(1) == pytest.approx(1 / 3)


def test_a_run_can_be_stopped_while_it_fills_the_file_of_its_reference(tmp_path: Path) -> None:
    given, stopped, again = (
        chosen(reference_file=str(tmp_path / "reference.npz")),
        JudgingRoles(),
        JudgingRoles(),
    )
    log = run_log(tmp_path, 3)
    # Two batches of two pairs: the run stops before the second.
    with pytest.raises(StopRequestedError):
        PreferenceTrainer(given, data((), PAIRS), stopped, log).run(asked_at(1))
    assert stopped.calls == ["reference log-probs"]
    assert log.summary.steps == 0
    PreferenceTrainer(given, data((), PAIRS), again, log).run()
    assert again.calls.count("reference log-probs") == 1


def test_a_run_that_is_stopped_goes_on_with_the_rows_that_come_next(tmp_path: Path) -> None:
    straight, first, second = JudgingRoles(), JudgingRoles(), JudgingRoles()
    for folder in ("straight", "begun", "on"):
        (tmp_path / folder).mkdir()
    PreferenceTrainer(chosen(), data((), PAIRS), straight, run_log(tmp_path / "straight", 3)).run()
    begun = PreferenceTrainer(chosen(), data((), PAIRS), first, run_log(tmp_path / "begun", 3))
    with pytest.raises(StopRequestedError):
        begun.run(asked_at(1))
    goes_on = PreferenceTrainer(chosen(), data((), PAIRS), second, run_log(tmp_path / "on", 3))
    goes_on.resume(1, begun.state())
    goes_on.run()
    both = [*first.minibatches, *second.minibatches]
    for ours, theirs in zip(both, straight.minibatches, strict=True):
        assert torch.equal(ours.slopes_BT, theirs.slopes_BT)
