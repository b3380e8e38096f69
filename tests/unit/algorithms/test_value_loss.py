"""The critic's loss against a plain Python reference and cases worked by hand."""

import pytest
import torch
from torch import Tensor

from mindrl.algorithms.losses import LossInputs, LossTerms
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.experience import CriticMinibatch

CLIP = 0.5
LOSS = ValueLoss(clip_range=CLIP)


def terms_of(values_BT: Tensor, **columns: Tensor) -> LossTerms:
    """Return the terms of a micro-batch that one rank has whole."""
    ones_BT = torch.ones_like(columns["token_weights_BT"])
    batch = CriticMinibatch(
        tokens_BT=ones_BT,
        lengths_B=ones_BT.sum(dim=1),
        response_mask_BT=columns["token_weights_BT"] > 0,
        **columns,
    )
    return LOSS(LossInputs.of((values_BT,), batch, ones_BT))


def reference(value: float, old: float, target: float) -> tuple[float, bool]:
    near = min(max(value, old - CLIP), old + CLIP)
    free, limited = (value - target) ** 2, (near - target) ** 2
    return 0.5 * max(free, limited), limited > free


@pytest.mark.parametrize(
    ("value", "target", "loss", "clipped", "slope"),
    [
        # The old value is 0, so the value counts between -0.5 and 0.5.
        (0.25, 1.0, 0.28125, 0, -0.75),  # inside the range: half of 0.75 squared
        (0.75, 1.0, 0.125, 1, 0.0),  # beyond it towards the return: half of 0.5 squared
        (0.75, -1.0, 1.53125, 0, 1.75),  # beyond it away from the return: no mercy
        (2.0, 1.0, 0.5, 0, 1.0),  # past the return: its own error is larger than 0.5
    ],
)
def test_a_clip_range_of_one_half_by_hand(
    value: float, target: float, loss: float, clipped: int, slope: float
) -> None:
    values_BT = torch.tensor([[value]], requires_grad=True)
    terms = terms_of(
        values_BT=values_BT,
        old_values_BT=torch.zeros(1, 1),
        returns_BT=torch.tensor([[target]]),
        token_weights_BT=torch.ones(1, 1),
    )
    (grad_BT,) = torch.autograd.grad(terms.loss, values_BT)
    assert terms.loss.item() == loss
    assert terms.metrics["clip_fraction"].item() == clipped
    assert grad_BT.item() == slope


def test_600_random_tokens_match_a_plain_python_reference_whole_and_in_micro_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (20, 30)
    old_BT, returns_BT, moved_BT = torch.randn(3, *shape, dtype=torch.float64, generator=generator)
    mask_BT = torch.rand(shape, generator=generator) < 0.7
    weights_BT = token_mean_weights(mask_BT).double()
    batch = {
        "values_BT": old_BT + moved_BT,
        "old_values_BT": old_BT,
        "returns_BT": returns_BT,
        "token_weights_BT": weights_BT,
    }
    whole = terms_of(**batch)
    parts = [
        terms_of(**{name: column[rows] for name, column in batch.items()})
        for rows in torch.arange(20).split(6)
    ]
    loss = clipped = 0.0
    for b, t in mask_BT.nonzero().tolist():
        token = reference(*(batch[name][b, t].item() for name in list(batch)[:3]))
        loss += weights_BT[b, t].item() * token[0]
        clipped += weights_BT[b, t].item() * token[1]
    assert whole.loss.item() == pytest.approx(loss, rel=1e-12)
    assert whole.metrics["value_loss"].item() == whole.loss.item()
    assert whole.metrics["clip_fraction"].item() == pytest.approx(clipped, rel=1e-12)
    assert 0.1 < clipped < 0.9  # the data reaches both branches
    mean = batch["values_BT"][mask_BT].mean().item()
    # token_mean_weights makes its weights in float32.
    assert whole.metrics["value"].item() == pytest.approx(mean, rel=1e-6)
    for name in whole.metrics:
        total = sum(part.metrics[name].item() for part in parts)
        assert total == pytest.approx(whole.metrics[name].item(), rel=1e-12)


def test_what_lies_outside_the_response_is_not_read() -> None:
    values_BT = torch.tensor([[float("nan"), 1.0]], requires_grad=True)
    terms = terms_of(
        values_BT=values_BT,
        old_values_BT=torch.tensor([[float("inf"), 1.0]]),
        returns_BT=torch.tensor([[float("nan"), 3.0]]),
        token_weights_BT=torch.tensor([[0.0, 1.0]]),
    )
    (grad_BT,) = torch.autograd.grad(terms.loss, values_BT)
    assert terms.loss.item() == 2.0
    assert grad_BT.tolist() == [[0.0, -2.0]]


def test_a_column_of_another_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"returns_BT has shape \[1, 3\]; .*\[1, 2\]"):
        terms_of(
            values_BT=torch.zeros(1, 2),
            old_values_BT=torch.zeros(1, 2),
            returns_BT=torch.zeros(1, 3),
            token_weights_BT=torch.ones(1, 2),
        )
