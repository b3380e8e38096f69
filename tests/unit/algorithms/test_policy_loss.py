"""Each policy loss against a plain Python reference in float64, and cases worked by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mindrl.algorithms.chosen_tokens import ChosenTokens
from mindrl.algorithms.policy_loss_names import policy_loss_names
from mindrl.algorithms.policy_losses.clipped import ClipOptions
from mindrl.algorithms.token_loss import TokenLoss, resolve_token_loss
from mindrl.config.rl import COVARIANCE_LOSSES, RLConfig


def token_loss(name: str, **keys: Any) -> TokenLoss:
    """Return a loss with these keys of `rl_config`."""
    return resolve_token_loss(RLConfig(mini_batch_size=1, policy_loss=name, **keys))


def terms(
    name: str,
    new_BT: Tensor,
    old_BT: Tensor,
    gain_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    clip: tuple[float, float],
) -> dict[str, Tensor]:
    """Return the terms of the tokens in a mask, which is everywhere where there is none."""
    mask_BT = torch.ones_like(new_BT, dtype=torch.bool) if mask_BT is None else mask_BT
    chosen = ChosenTokens(
        logprobs_BT=new_BT,
        old_logprobs_BT=old_BT,
        advantages_BT=gain_BT,
        mask_BT=mask_BT,
    )
    return token_loss(name, clip_ratio_low=clip[0], clip_ratio_high=clip[1])(chosen)


def reference_loss(
    new: float, old: float, advantage: float, low: float, high: float
) -> tuple[float, bool]:
    ratio = math.exp(new - old)
    limited = min(max(ratio, 1 - low), 1 + high) * advantage
    return -min(ratio * advantage, limited), limited < ratio * advantage


def test_2000_random_tokens_match_a_plain_python_reference_in_loss_clipping_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    new_BT = torch.randn(20, 100, dtype=torch.float64, generator=generator).requires_grad_()
    old_BT = new_BT.detach() + 0.3 * torch.randn(20, 100, dtype=torch.float64, generator=generator)
    gain_BT = torch.randn(20, 100, dtype=torch.float64, generator=generator)
    result = terms("clipped", new_BT, old_BT, gain_BT, clip=(0.2, 0.28))
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    step = 1e-6
    clipped = 0
    for b in range(20):
        for t in range(100):
            new, old, gain = new_BT[b, t].item(), old_BT[b, t].item(), gain_BT[b, t].item()
            loss, is_clipped = reference_loss(new, old, gain, 0.2, 0.28)
            assert result["policy_loss"][b, t].item() == pytest.approx(loss, rel=1e-12)
            assert result["clip_fraction"][b, t].item() == is_clipped
            assert result["ratio"][b, t].item() == pytest.approx(math.exp(new - old), rel=1e-12)
            rise = (
                reference_loss(new + step, old, gain, 0.2, 0.28)[0]
                - reference_loss(new - step, old, gain, 0.2, 0.28)[0]
            )
            assert grad_BT[b, t].item() == pytest.approx(rise / (2 * step), abs=1e-6)
            clipped += is_clipped
    assert 300 < clipped < 1000  # the data reaches both branches


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "slope"),
    [
        (1.5, 1.0, -1.2, 1, 0.0),
        (1.5, -1.0, 1.5, 0, 1.5),
        (0.5, 1.0, -0.5, 0, -0.5),
        (0.5, -1.0, 0.9, 1, 0.0),
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.5, 0.0, 0.0, 0, 0.0),
    ],
)
def test_clip_low_01_and_clip_high_02_at_ratios_one_can_check_by_hand(
    ratio: float, advantage: float, loss: float, clipped: int, slope: float
) -> None:
    new_BT = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old_BT = torch.zeros(1, 1, dtype=torch.float64)
    gain_BT = torch.tensor([[advantage]], dtype=torch.float64)
    result = terms("clipped", new_BT, old_BT, gain_BT, clip=(0.1, 0.2))
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    assert result["policy_loss"].item() == pytest.approx(loss)
    assert result["clip_fraction"].item() == clipped
    assert grad_BT.item() == pytest.approx(slope)


@pytest.mark.parametrize("log_ratio", [89.0, -89.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_log_ratio_that_exp_cannot_hold_gives_a_finite_loss_and_no_gradient(
    log_ratio: float, advantage: float
) -> None:
    """e^89 is beyond float32; the ratio ends at e^20, about 4.85e8."""
    new_BT = torch.tensor([[log_ratio, 0.0]], requires_grad=True)
    gain_BT = torch.full((1, 2), advantage)
    result = terms("clipped", new_BT, torch.zeros(1, 2), gain_BT, clip=(0.2, 0.2))
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    assert grad_BT.tolist() == [[0.0, -advantage]]
    assert result["policy_loss"].isfinite().all()
    assert result["ratio"][0, 0].item() == pytest.approx(math.exp(math.copysign(20, log_ratio)))


LOW, HIGH, C, TAU = 0.2, 0.28, 3.0, {True: 1.0, False: 1.05}


def kept(value: float, low: float = 1 - LOW, high: float = 1 + HIGH) -> float:
    return min(max(value, low), high)


def mean_log(news: list[float], olds: list[float]) -> float:
    return sum(new - old for new, old in zip(news, olds, strict=True)) / len(news)


def of_sequence(ratio: float, gain: float) -> float:
    return -min(ratio * gain, kept(ratio) * gain)


def geometric(news: list[float], olds: list[float], gain: float) -> float:
    sign = math.copysign(1, gain)
    logs = [new - old for new, old in zip(news, olds, strict=True)]
    chosen = [min(sign * each, sign * kept(each, -LOW, HIGH)) * sign for each in logs]
    return -math.exp(sum(chosen) / len(chosen)) * gain


def of_tokens(loss: Callable[[float, float, float], float]) -> Callable[..., float]:
    """Return the mean over a sequence of what each token loses, by ratio, advantage, log-prob."""
    return lambda news, olds, gain: (
        sum(loss(math.exp(new - old), gain, new) for new, old in zip(news, olds, strict=True))
        / len(news)
    )


REFERENCES: dict[str, Callable[[list[float], list[float], float], float]] = {
    "clipped": of_tokens(lambda ratio, gain, _: of_sequence(ratio, gain)),
    "dual_clip": of_tokens(
        lambda ratio, gain, _: (
            of_sequence(ratio, gain) if gain >= 0 else min(of_sequence(ratio, gain), -C * gain)
        )
    ),
    "gspo": lambda news, olds, gain: of_sequence(math.exp(mean_log(news, olds)), gain),
    "gmpo": geometric,
    "sapo": of_tokens(
        lambda ratio, gain, _: (
            -4 / TAU[gain > 0] / (1 + math.exp(-TAU[gain > 0] * (ratio - 1))) * gain
        )
    ),
    "plain": of_tokens(lambda _, gain, new: -gain * new),
}
"""Mean loss of a sequence; its derivatives are those by differences."""


@pytest.mark.parametrize("name", REFERENCES)
def test_loss_and_gradient_of_sequences_equal_a_plain_python_reference(name: str) -> None:
    """400 sequences of 1 to 6 tokens, of which the log-ratios spread by 0.8."""
    draw, options = torch.Generator().manual_seed(1), {"dtype": torch.float64}
    lengths_B = torch.randint(1, 7, (400,), generator=draw)
    mask_BT = torch.arange(6) < lengths_B[:, None]
    new_BT = (torch.randn(400, 6, generator=draw, **options) - 2).requires_grad_()
    old_BT = new_BT.detach() + 0.8 * torch.randn(400, 6, generator=draw, **options)
    gain_B = torch.randn(400, generator=draw, **options)
    inside = [each.masked_fill(~mask_BT, 0.0) for each in (new_BT, old_BT)]
    found = terms(name, *inside, gain_B[:, None] * mask_BT, mask_BT, clip=(LOW, HIGH))
    weights_BT = mask_BT.double() / lengths_B[:, None]
    (grad_BT,) = torch.autograd.grad((found["policy_loss"] * weights_BT).sum(), new_BT)
    assert (grad_BT[~mask_BT] == 0).all()
    loss_B, step = (found["policy_loss"] * weights_BT).sum(dim=1), 1e-6
    for row, length in enumerate(lengths_B.tolist()):
        news, olds = new_BT[row, :length].tolist(), old_BT[row, :length].tolist()
        gain, reference = gain_B[row].item(), REFERENCES[name]
        assert loss_B[row].item() == pytest.approx(reference(news, olds, gain), rel=1e-12)
        for at in range(length):
            more, less = ([*news] for _ in range(2))
            more[at], less[at] = news[at] + step, news[at] - step
            rise = reference(more, olds, gain) - reference(less, olds, gain)
            assert grad_BT[row, at].item() == pytest.approx(rise / (2 * step), abs=1e-6)


def test_cispo_has_the_clipped_ratio_for_a_weight_and_a_gradient_at_every_token() -> None:
    """Ratios 0.5, 1 and 2 within 0.8 and 1.28, advantage 3: weights 0.8, 1 and 1.28."""
    new_BT = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64).log().requires_grad_()
    found = terms("cispo", new_BT, torch.zeros(1, 3), torch.full((1, 3), 3.0), clip=(LOW, HIGH))
    (grad_BT,) = torch.autograd.grad(found["policy_loss"].sum(), new_BT)
    assert grad_BT[0].tolist() == pytest.approx([-2.4, -3.0, -3.84])
    assert found["clip_fraction"].tolist() == [[True, False, True]]
    assert found["policy_loss"][0, 2].item() == pytest.approx(-3.84 * math.log(2))


def test_the_weight_of_cispo_has_no_gradient_of_its_own() -> None:
    """A ratio of 1.1 within the bounds, advantage 3, log-prob -2: the slope is -3.3 alone."""
    new_BT = torch.tensor([[-2.0]], dtype=torch.float64, requires_grad=True)
    old_BT = torch.tensor([[-2.0 - math.log(1.1)]], dtype=torch.float64)
    found = terms("cispo", new_BT, old_BT, torch.full((1, 1), 3.0), clip=(LOW, HIGH))
    (grad_BT,) = torch.autograd.grad(found["policy_loss"].sum(), new_BT)
    assert grad_BT.item() == pytest.approx(-3.3)


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_a_sequence_that_two_ranks_share_has_one_ratio(name: str) -> None:
    """Each rank has some of the tokens; numbers of sequences are added over both."""
    draw = torch.Generator().manual_seed(2)
    new_BT, old_BT = torch.randn(2, 5, 4, generator=draw)
    gain_BT = torch.tensor([1.0, -1.0, 2.0, -0.5, 0.0])[:, None].expand(5, 4)
    own = [torch.arange(4) < 1, torch.arange(4) >= 1]
    whole = terms(name, new_BT, old_BT, gain_BT, clip=(LOW, HIGH))["ratio"]

    def part(mine: Tensor, other: Tensor) -> Tensor:
        counted = iter((torch.full((5,), float(other.sum())), sums(other)))
        chosen = ChosenTokens(
            logprobs_BT=new_BT * mine,
            old_logprobs_BT=old_BT * mine,
            advantages_BT=gain_BT * mine,
            mask_BT=mine.expand(5, 4),
            total=lambda values_B: values_B + next(counted),
        )
        loss = token_loss(name, clip_ratio_low=LOW, clip_ratio_high=HIGH)
        return loss(chosen)["ratio"] * mine

    def sums(mine: Tensor) -> Tensor:
        log_BT, sign_BT = new_BT - old_BT, gain_BT.sign()
        if name == "gmpo":
            limited_BT = log_BT.clamp(-LOW, HIGH)
            log_BT = sign_BT * torch.minimum(sign_BT * log_BT, sign_BT * limited_BT)
        return (log_BT * mine).sum(dim=1)

    assert torch.allclose(part(*own) + part(*reversed(own)), whole, rtol=1e-6)


def test_the_losses_that_need_old_log_probs_before_an_update_are_those_that_select_tokens() -> None:
    selecting = {name for name in policy_loss_names() if token_loss(name).selection is not None}
    assert selecting == {*COVARIANCE_LOSSES}


@pytest.mark.parametrize(
    ("changes", "range_"),
    [
        ({}, (0.2, 0.2)),
        ({"clip_ratio": 0.1}, (0.1, 0.1)),
        ({"clip_ratio_high": 0.28}, (0.2, 0.28)),
        ({"clip_ratio_low": 0.1, "clip_ratio_high": 1.5}, (0.1, 1.5)),
    ],
)
def test_each_side_of_the_clipping_is_its_own_key_or_clip_ratio(
    changes: dict[str, float], range_: tuple[float, float]
) -> None:
    options = token_loss("clipped", **changes).options
    assert isinstance(options, ClipOptions)
    assert (options.low, options.high) == range_


PICKED = torch.tensor([[True, False], [False, True]])


def covariance_loss(new: float, old: float, gain: float, name: str, picked: bool) -> float:
    """Say the loss of a token, in float64."""
    ratio = math.exp(new - old)
    if name == "kl_cov":
        return -ratio * gain + 0.7 * abs(new - old) * picked
    return 0.0 if picked else of_sequence(ratio, gain)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_picked_tokens_are_left_out_or_held(name: str) -> None:
    new_BT = torch.tensor([[0.3, -0.1], [-0.4, 0.2]], dtype=torch.float64, requires_grad=True)
    old_BT = torch.tensor([[0.1, 0.1], [-0.1, 0.1]], dtype=torch.float64)
    gain_BT = torch.tensor([[1.0, 0.5], [-1.0, 2.0]], dtype=torch.float64)
    chosen = ChosenTokens(
        logprobs_BT=new_BT,
        old_logprobs_BT=old_BT,
        advantages_BT=gain_BT,
        mask_BT=torch.ones(2, 2) > 0,
        picked_BT=PICKED,
    )
    loss = token_loss(name, clip_ratio_low=LOW, clip_ratio_high=HIGH, kl_cov_coef=0.7)
    loss_BT = loss(chosen)["policy_loss"]
    (grad_BT,) = torch.autograd.grad(loss_BT.sum(), new_BT)
    step = 1e-6
    for b, t in ((0, 0), (0, 1), (1, 0), (1, 1)):
        new, old, gain = (each[b, t].item() for each in (new_BT, old_BT, gain_BT))
        picked = bool(PICKED[b, t])
        assert loss_BT[b, t].item() == pytest.approx(covariance_loss(new, old, gain, name, picked))
        rise = covariance_loss(new + step, old, gain, name, picked) - covariance_loss(
            new - step, old, gain, name, picked
        )
        assert grad_BT[b, t].item() == pytest.approx(rise / (2 * step), abs=1e-6)
    # Held on either side: a token that became less likely costs as much as one that became more.
    less_BT = replace(chosen, logprobs_BT=old_BT - 0.2, advantages_BT=0 * gain_BT)
    held_BT = loss(less_BT)["policy_loss"]
    assert torch.allclose(held_BT, 0.14 * PICKED.double() * (name == "kl_cov"))
    # By hand, the token of a ratio of e^0.2 and an advantage of 1.
    assert loss_BT[0, 0].item() == pytest.approx(
        {"clip_cov": 0.0, "kl_cov": -math.exp(0.2) + 0.7 * 0.2}[name]
    )
