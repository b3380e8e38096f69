"""The divergence from a teacher over its most probable tokens.

Shapes: B sequences, T positions, V tokens of the vocabulary, K candidates.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from mindrl.algorithms.answer_loss import answer_loss
from mindrl.algorithms.divergence import TaughtLoss, divergence
from mindrl.algorithms.losses import LikelyLogprobs, LossInputs
from mindrl.batch.experience import WeightedSequences

B, T, V = 2, 3, 12


def distributions() -> tuple[Tensor, Tensor]:
    """Return log-probs of a policy and of a teacher, [B, T, V], the teacher's in falling order."""
    generator = torch.Generator().manual_seed(4)
    ours, theirs = 2 * torch.randn(2, B, T, V, dtype=torch.float64, generator=generator)
    return ours.log_softmax(dim=-1), theirs.log_softmax(dim=-1).sort(descending=True).values


def test_over_the_whole_vocabulary_it_is_torchs_kl_and_over_fewer_tokens_it_is_less() -> None:
    ours_BTV, theirs_BTV = distributions()
    whole = {
        "reverse": kl_div(theirs_BTV, ours_BTV, log_target=True, reduction="none").sum(dim=-1),
        "forward": kl_div(ours_BTV, theirs_BTV, log_target=True, reduction="none").sum(dim=-1),
    }
    for form, kl_BT in whole.items():
        assert form in ("reverse", "forward")
        found = [divergence(form, ours_BTV[..., :k], theirs_BTV[..., :k]) for k in range(1, V + 1)]
        # The rest of the last is 1e-7 for both.
        torch.testing.assert_close(found[-1], kl_BT, atol=1e-6, rtol=0)
        for fewer_BT, more_BT in pairwise(found):
            assert (fewer_BT <= more_BT + 1e-6).all()
        assert (found[0] > 0).all()


def test_two_tokens_and_a_rest_by_hand() -> None:
    ours = torch.tensor([[[0.5, 0.25]]]).log()
    theirs = torch.tensor([[[0.75, 0.125]]]).log()
    # ln 2/3 and ln 2 of the two, and 1/4 ln 2, or 1/8 ln 1/2, of the rest.
    reverse = 0.5 * -0.405465 + 0.25 * 0.693147 + 0.25 * 0.693147
    forward = 0.75 * 0.405465 - 0.125 * 0.693147 - 0.125 * 0.693147
    assert divergence("reverse", ours, theirs).item() == pytest.approx(reverse, abs=1e-6)
    assert divergence("forward", ours, theirs).item() == pytest.approx(forward, abs=1e-6)


@pytest.mark.parametrize("form", ["reverse", "forward"])
def test_it_is_zero_with_a_gradient_of_zero_where_both_agree_even_without_a_rest(
    form: str,
) -> None:
    assert form in ("reverse", "forward")
    # The other tokens have probability 0.1, or none that float32 can add to 1.
    for highest in (3.0, 60.0):
        logits_V = torch.tensor([highest, 0.0, 0.0]).requires_grad_()
        ours_BTK = logits_V.log_softmax(dim=-1)[None, None, :1]
        found = divergence(form, ours_BTK, ours_BTK.detach())
        found.sum().backward()
        assert found.item() == pytest.approx(0.0, abs=1e-7)
        assert logits_V.grad is not None
        assert logits_V.grad.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_the_loss_adds_both_terms_by_their_coefficients_and_ignores_unweighted_tokens() -> None:
    ours_BTV, theirs_BTV = (each[..., :2].float() for each in distributions())
    weights_BT = torch.tensor([[0.0, 0.5, 0.25], [0.0, 0.25, 0.0]])
    unused = weights_BT == 0
    ours_BTV, theirs_BTV = (
        each.masked_fill(unused[..., None], torch.nan) for each in (ours_BTV, theirs_BTV)
    )
    batch = WeightedSequences(
        tokens_BT=torch.zeros(B, T, dtype=torch.int64),
        lengths_B=torch.full((B,), T),
        response_mask_BT=~unused,
        token_weights_BT=weights_BT,
    )
    # In another order than in the rows, and without a position that is in no response.
    places_N = torch.tensor([5, 2, 1, 4])
    likely = LikelyLogprobs(
        ours_NK=ours_BTV.flatten(0, 1)[places_N],
        theirs_NK=theirs_BTV.flatten(0, 1)[places_N],
        places_N=places_N,
    )
    outputs = (torch.full((B, T), -1.5), torch.zeros(B, T))
    inputs = LossInputs.of(outputs, batch, torch.ones(B, T), likely=likely)
    loss = TaughtLoss(own=answer_loss, own_coef=0.25, form="forward", coef=2.0)
    found = loss(inputs)
    each_BT = divergence("forward", ours_BTV, theirs_BTV).masked_fill(unused, 0.0)
    expected = (weights_BT * each_BT).sum().item()
    assert found.metrics["teacher_divergence"].item() == pytest.approx(expected, rel=1e-6)
    assert found.metrics["answer_loss"].item() == pytest.approx(1.5, rel=1e-6)
    assert found.loss.item() == pytest.approx(0.25 * 1.5 + 2 * expected, rel=1e-6)
    assert found.metrics["entropy"] == answer_loss(inputs).metrics["entropy"]
