"""KL estimates against a plain Python reference and an exact KL."""

import math

import pytest
import torch

from mindrl.algorithms.kl import KlKind, kl_estimate, log_ratio


def reference_kl(logprob: float, ref: float, kind: str) -> float:
    difference = logprob - ref
    if kind in ("k1", "kl"):
        return difference
    if kind in ("k2", "mse"):
        return difference * difference / 2
    if kind == "abs":
        return abs(difference)
    clamped = min(max(-difference, -20.0), 20.0)
    return math.exp(clamped) - clamped - 1


def logprobs(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -5 * torch.rand(4, 9, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("kind", ["k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs"])
def test_every_kind_matches_a_plain_python_reference_in_value_and_gradient(kind: KlKind) -> None:
    new_BT = logprobs(0).requires_grad_()
    ref_BT = logprobs(1)
    estimate_BT = kl_estimate(new_BT, ref_BT, kind)
    (grad_BT,) = torch.autograd.grad(estimate_BT.sum(), new_BT)
    step = 1e-6
    for b in range(4):
        for t in range(9):
            new, ref = new_BT[b, t].item(), ref_BT[b, t].item()
            expected = reference_kl(new, ref, kind)
            assert estimate_BT[b, t].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
            slope = reference_kl(new + step, ref, kind) - reference_kl(new - step, ref, kind)
            # A central difference with a step of 1e-6 is good to about 1e-8 here.
            assert grad_BT[b, t].item() == pytest.approx(slope / (2 * step), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize(("short", "known"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_both_spellings_give_the_same_bits(short: KlKind, known: KlKind) -> None:
    new_BT, ref_BT = logprobs(2), logprobs(3)
    assert torch.equal(kl_estimate(new_BT, ref_BT, short), kl_estimate(new_BT, ref_BT, known))


def test_k3_of_a_token_50_nats_apart_is_finite_and_without_gradient() -> None:
    new_BT = torch.tensor([[-60.0, -0.1]], requires_grad=True)
    estimate_BT = kl_estimate(new_BT, torch.tensor([[-0.1, -60.0]]), "k3")
    (grad_BT,) = torch.autograd.grad(estimate_BT.sum(), new_BT)
    expected = [math.exp(20) - 21, math.exp(-20) + 19]
    assert estimate_BT[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert grad_BT.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_an_infinite_log_prob_is_hidden_by_no_bound(kind: KlKind) -> None:
    new_BT, ref_BT = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-math.inf, math.inf]])
    assert not kl_estimate(new_BT, ref_BT, kind).isfinite().any()
    assert log_ratio(new_BT, ref_BT).isnan().all()


def test_k3_in_float32_keeps_six_digits_for_log_probs_one_part_in_1024_apart() -> None:
    difference = 2.0**-10
    estimate_BT = kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[-1.0 + difference]]), "k3")
    # exp(x) - x - 1 in float32 would be wrong by up to 6e-8 of 4.8e-7.
    expected = difference**2 / 2 + difference**3 / 6 + difference**4 / 24
    assert estimate_BT.item() == pytest.approx(expected, rel=3e-4)


def test_the_mean_of_k1_and_k3_over_all_tokens_of_the_vocabulary_is_the_exact_kl() -> None:
    generator = torch.Generator().manual_seed(4)
    policy_V = torch.randn(50, dtype=torch.float64, generator=generator).log_softmax(0)
    ref_V = torch.randn(50, dtype=torch.float64, generator=generator).log_softmax(0)
    exact = sum(p * math.log(p / q) for p, q in zip(policy_V.exp(), ref_V.exp(), strict=True))
    for kind in ("k1", "k3"):
        mean = (policy_V.exp() * kl_estimate(policy_V, ref_V, kind)).sum()
        assert mean.item() == pytest.approx(float(exact), rel=1e-10)
