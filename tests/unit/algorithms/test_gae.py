"""Advantages of PPO against a slow, plain loop and against numbers worked by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mindrl.algorithms.advantages import explained_variance, gae_advantages, token_rewards, whiten


def looped(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Sum (gamma * lam)^k * delta over all tokens that follow, for each token anew."""
    behind = [*values[1:], 0.0]
    deltas = [
        reward + gamma * after - value
        for reward, after, value in zip(rewards, behind, values, strict=True)
    ]
    advantages = [
        sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def one_row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_two_tokens_with_gamma_and_lambda_of_one_half_by_hand() -> None:
    """deltas: 0 + 0.5 * 4 - 2 = 0 and 1 + 0 - 4 = -3; first advantage 0 + 0.25 * -3."""
    advantages_BT, returns_BT = gae_advantages(
        one_row(0, 1), one_row(2, 4), torch.tensor([[True, True]]), gamma=0.5, lam=0.5
    )
    assert advantages_BT.tolist() == [[-0.75, -3.0]]
    assert returns_BT.tolist() == [[1.25, 1.0]]


def test_with_gamma_and_lambda_1_every_return_is_what_is_still_to_come() -> None:
    advantages_BT, returns_BT = gae_advantages(
        one_row(9, 1, 2, 4), one_row(9, 10, 20, 30), torch.tensor([[0, 1, 1, 1]]).bool(),
        gamma=1.0, lam=1.0,
    )  # fmt: skip
    assert returns_BT.tolist() == [[0, 7, 6, 4]]
    assert advantages_BT.tolist() == [[0, -3, -14, -26]]


def test_with_lambda_0_an_advantage_looks_one_token_ahead() -> None:
    advantages_BT, _ = gae_advantages(
        one_row(1, 2, 4), one_row(10, 20, 30), torch.ones(1, 3).bool(), gamma=1.0, lam=0.0
    )
    assert advantages_BT.tolist() == [[1 + 20 - 10, 2 + 30 - 20, 4 - 30]]


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=5),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_any_batch_matches_the_loop_row_by_row_and_is_0_outside_the_response(
    lengths: list[tuple[int, int]], gamma: float, lam: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    B, T = len(lengths), max(prompt + response for prompt, response in lengths) + 1
    # What lies outside the response must not be read: it is no number.
    rewards_BT, values_BT = torch.full((2, B, T), float("nan"), dtype=torch.float64)
    mask_BT = torch.zeros(B, T, dtype=torch.bool)
    for row, (prompt, response) in enumerate(lengths):
        mask_BT[row, prompt : prompt + response] = True
    for each_BT in (rewards_BT, values_BT):
        count = int(mask_BT.sum())
        each_BT[mask_BT] = torch.randn(count, dtype=torch.float64, generator=generator)

    advantages_BT, returns_BT = gae_advantages(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam)

    for row in range(B):
        inside_T = mask_BT[row]
        wanted = looped(rewards_BT[row][inside_T].tolist(), values_BT[row][inside_T].tolist(),
                        gamma, lam)  # fmt: skip
        # float64 sums of at most 9 terms, in two orders.
        assert advantages_BT[row][inside_T].tolist() == pytest.approx(wanted[0], abs=1e-12)
        assert returns_BT[row][inside_T].tolist() == pytest.approx(wanted[1], abs=1e-12)
    assert not advantages_BT[~mask_BT].any()
    assert not returns_BT[~mask_BT].any()


def test_a_gap_in_the_response_is_stepped_over() -> None:
    """Tokens that the policy did not choose lie between those that it did."""
    whole, _ = gae_advantages(
        one_row(1, 2, 4), one_row(3, 5, 7), torch.ones(1, 3).bool(), gamma=0.9, lam=0.8
    )
    apart, _ = gae_advantages(
        one_row(1, 50, 2, 60, 4),
        one_row(3, 70, 5, 80, 7),
        torch.tensor([[1, 0, 1, 0, 1]]).bool(),
        gamma=0.9,
        lam=0.8,
    )
    assert apart[0, [0, 2, 4]].tolist() == whole[0].tolist()
    assert apart[0, [1, 3]].tolist() == [0, 0]


def test_the_score_comes_with_the_last_response_token_and_the_penalty_with_each() -> None:
    mask_BT = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]]).bool()
    penalty_BT = torch.tensor([[8.0, 0.5, 0.25, 8.0], [8.0, 8.0, 0.125, 1.0]])
    rewards_BT = token_rewards(torch.tensor([1.0, -2.0]), penalty_BT, mask_BT)
    assert rewards_BT.tolist() == [[0, -0.5, 0.75, 0], [0, 0, -0.125, -3.0]]


def test_whitened_tokens_have_mean_0_and_variance_1_over_the_mask_alone() -> None:
    mask_BT = torch.tensor([[0, 1, 1], [1, 1, 0]]).bool()
    values_BT = torch.tensor([[100.0, 1, 3], [5, 7, float("nan")]])
    # Mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
    wanted = [[0, -3, -1], [1, 3, 0]]
    whitened_BT = whiten(values_BT, mask_BT)
    # The 1e-8 beside a variance of 5 is below the rounding of float32.
    assert torch.allclose(whitened_BT * 5**0.5, torch.tensor(wanted).float(), rtol=1e-6, atol=0)
    assert whitened_BT[mask_BT].square().mean().item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e6, -3.3])
def test_equal_advantages_hold_no_signal(value: float) -> None:
    whitened_BT = whiten(torch.full((4, 7), value), torch.ones(4, 7).bool())
    # float64 means of 28 equal float32 numbers are off by at most 1e-16 of them, over 1e-4.
    assert whitened_BT.abs().max().item() <= 1e-12 * abs(value)


def test_a_single_token_is_whitened_to_0() -> None:
    assert whiten(torch.tensor([[5.0, 2.0]]), torch.tensor([[False, True]])).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("values", "explained"),
    [((1, 2, 3), 1.0), ((2, 2, 2), 0.0), ((11, 12, 13), 1.0), ((3, 2, 1), -3.0)],
)
def test_explained_variance_of_returns_1_2_3(values: tuple[int, ...], explained: float) -> None:
    mask_BT = torch.tensor([[False, True, True, True]])
    found = explained_variance(one_row(99, *values), one_row(-99, 1, 2, 3), mask_BT)
    assert found == pytest.approx(explained, abs=1e-12)


def test_a_return_that_is_no_number_is_not_explained_by_0() -> None:
    returns_BT, mask_BT = torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2, dtype=torch.bool)
    assert math.isnan(explained_variance(torch.zeros(1, 2), returns_BT, mask_BT))


def test_equal_returns_leave_nothing_to_explain() -> None:
    assert explained_variance(one_row(1, 2), one_row(3, 3), torch.ones(1, 2).bool()) == 0.0
