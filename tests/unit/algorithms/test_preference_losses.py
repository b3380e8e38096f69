"""Losses of preferences against the published formulas, and the gradient through an update."""

import math

import pytest
import torch

from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.preference_losses import (
    kl_of_mismatched,
    label_losses,
    pair_losses,
    sloped_loss,
)
from mindrl.batch.sequences import Sequences
from mindrl.config.preference import PreferenceConfig, PreferenceForm
from mindrl.trainer.preference_trainer import minibatch_of

RATIOS, TOKENS = (1.5, -0.5, -2.0, 0.25), (3, 2, 4, 1)
"""Of two chosen answers, then of two rejected ones."""


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def written_out(form: str, smoothing: float, pair: int) -> float:
    chosen, rejected = RATIOS[pair], RATIOS[pair + 2]
    if form in ("ipo", "sigmoid_norm"):
        chosen, rejected = chosen / TOKENS[pair], rejected / TOKENS[pair + 2]
    margin = chosen - rejected
    if form == "ipo":
        return (margin - 1 / (2 * 0.5)) ** 2
    if form == "hinge":
        return max(0.0, 1 - 0.5 * margin)
    right, wrong = math.log(sigmoid(0.5 * margin)), math.log(sigmoid(-0.5 * margin))
    return -(1 - smoothing) * right - smoothing * wrong


@pytest.mark.parametrize("form", ["sigmoid", "sigmoid_norm", "ipo", "hinge"])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_losses_of_pairs_are_those_of_the_formulas_and_slopes_their_differences(
    form: PreferenceForm, smoothing: float
) -> None:
    config = PreferenceConfig(loss=form, beta=0.5, label_smoothing=smoothing)
    ratios_B = torch.tensor(RATIOS, dtype=torch.float64)
    found = pair_losses(config, ratios_B, torch.tensor(TOKENS))
    expected = [written_out(form, smoothing, pair) for pair in range(2)]
    assert found.losses_B.tolist() == pytest.approx(expected)
    assert found.rewards_B.tolist() == [0.5 * each for each in RATIOS]
    for at in range(4):
        step_B = torch.zeros(4, dtype=torch.float64)
        step_B[at] = 1e-6
        up, down = (
            pair_losses(config, ratios_B + sign * step_B, torch.tensor(TOKENS)).losses_B.mean()
            for sign in (1, -1)
        )
        # Central differences are exact to the square of the step.
        assert found.slopes_B[at].item() == pytest.approx((up - down).item() / 2e-6, abs=1e-8)


def test_losses_of_labelled_answers_are_those_of_kto() -> None:
    config = PreferenceConfig(loss="kto", beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    ratios_B = torch.tensor(RATIOS, dtype=torch.float64)
    labels = (True, False, False, True)
    found = label_losses(config, ratios_B, torch.tensor(labels), torch.tensor(0.4))
    for ratio, label, loss, slope in zip(
        RATIOS, labels, found.losses_B.tolist(), found.slopes_B.tolist(), strict=True
    ):
        weight, sign = (2.0, 1) if label else (3.0, -1)
        inner = sigmoid(0.5 * sign * (ratio - 0.4))
        assert loss == pytest.approx(weight * (1 - inner))
        assert slope == pytest.approx(-sign * weight * 0.5 * inner * (1 - inner) / 4)


def test_the_kl_of_mismatched_answers_is_their_mean_ratio_and_not_negative() -> None:
    assert kl_of_mismatched(torch.tensor([1.0, 2.0])).item() == 1.5
    assert kl_of_mismatched(torch.tensor([1.0, -2.0])).item() == 0.0


def test_an_update_in_parts_has_the_gradient_of_dpo() -> None:
    """Two pairs; each answer is a micro-batch of its own, and prompts have NaN."""
    logprobs_BT = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask_BT = (torch.arange(6) >= 2) & (torch.arange(6) < torch.tensor([[3], [6], [5], [4]]))
    sums_B = (logprobs_BT * mask_BT).sum(dim=1)
    margins_P = sums_B[:2] - sums_B[2:]
    dpo = -torch.nn.functional.logsigmoid(0.5 * margins_P).mean()
    (expected_BT,) = torch.autograd.grad(dpo, logprobs_BT, retain_graph=True)
    config = PreferenceConfig(beta=0.5)
    judged = pair_losses(config, sums_B.detach().double(), mask_BT.sum(dim=1))
    assert judged.losses_B.mean().item() == pytest.approx(dpo.item(), rel=1e-6)
    tokens_BT, lengths_B = torch.zeros(4, 6, dtype=torch.long), torch.full((4,), 6)
    batch = Sequences(tokens_BT=tokens_BT, lengths_B=lengths_B, response_mask_BT=mask_BT)
    minibatch = minibatch_of(batch, judged.slopes_B)
    assert minibatch.token_weights_BT.sum().item() == pytest.approx(1)
    for row in range(4):
        outputs = (logprobs_BT.masked_fill(~mask_BT, math.nan)[row : row + 1],) * 2
        part = minibatch.rows(slice(row, row + 1))
        sloped_loss(LossInputs.of(outputs, part, torch.ones(1, 6))).loss.backward(retain_graph=True)
    # Weights and slopes are float32.
    torch.testing.assert_close(logprobs_BT.grad, expected_BT, rtol=1e-6, atol=1e-9)
