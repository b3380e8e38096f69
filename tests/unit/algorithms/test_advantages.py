"""Advantages against a plain Python reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.algorithms.advantages import group_normalised_advantages
from mindrl.config.returned_number import LARGEST_SCORE


def reference_advantages(rewards: list[float], groups: list[int], epsilon: float) -> list[float]:
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(members) / len(members)
        divisor = max(len(members) - 1, 1)
        std = math.sqrt(sum((member - mean) ** 2 for member in members) / divisor)
        advantages.append((reward - mean) / (std + epsilon))
    return advantages


@given(
    st.lists(
        st.tuples(st.floats(-10, 10), st.integers(-3, 3)),
        min_size=1,
        max_size=24,
    )
)
@settings(max_examples=150, deadline=None)
def test_matches_a_plain_python_reference_for_any_ids_order_and_group_sizes(
    pairs: list[tuple[float, int]],
) -> None:
    rewards = [reward for reward, _ in pairs]
    groups = [group for _, group in pairs]
    advantages_B = group_normalised_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    )
    # An error of 1e-16 * 10 in a reward is divided by at least epsilon = 1e-6.
    expected = reference_advantages(rewards, groups, 1e-6)
    assert advantages_B.tolist() == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_rewards_0_and_1_in_a_group_of_two_give_advantages_of_minus_and_plus_root_half() -> None:
    advantages_B = group_normalised_advantages(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    # The sample std of (0, 1) is sqrt(1/2); the divisor-n std would give -1 and 1.
    assert advantages_B.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, -7.7, 1e6 + 0.1])
def test_a_group_of_equal_rewards_and_a_group_of_one_get_exactly_zero(
    reward: float, dtype: torch.dtype
) -> None:
    rewards_B = torch.tensor([reward] * 7 + [0.3], dtype=dtype)
    group_B = torch.tensor([5] * 7 + [2])
    advantages_B = group_normalised_advantages(rewards_B, group_B)
    assert advantages_B.tolist() == [0.0] * 8
    assert advantages_B.dtype == dtype


def test_advantages_travel_with_their_sequence_when_the_batch_is_shuffled() -> None:
    rewards_B = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    group_B = torch.arange(32) // 4
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    shuffled_B = group_normalised_advantages(rewards_B[order], group_B[order])
    straight_B = group_normalised_advantages(rewards_B, group_B)
    torch.testing.assert_close(shuffled_B, straight_B[order], rtol=1e-12, atol=1e-12)


def test_the_mean_of_each_group_is_zero_in_float32_though_rewards_are_near_1000() -> None:
    rewards_B = 1000 + torch.rand(64, generator=torch.Generator().manual_seed(1))
    advantages_B = group_normalised_advantages(rewards_B, torch.arange(64) % 8)
    # Float32 has a step of 6e-5 near 1000, which is exact here: only the sums round.
    assert advantages_B.view(8, 8).mean(dim=0).abs().max() < 1e-6


def test_a_large_group_of_the_largest_rewards_has_a_finite_deviation() -> None:
    """With the maximum weight, in a group of 512."""
    largest = LARGEST_SCORE * 1e6
    rewards_B = torch.tensor([largest, -largest]).repeat(256)
    advantages_B = group_normalised_advantages(rewards_B, torch.zeros(512, dtype=torch.int64))
    wanted = (511 / 512) ** 0.5
    assert advantages_B.tolist() == pytest.approx([wanted, -wanted] * 256, rel=1e-5)


def test_a_group_tensor_of_another_length_is_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\[3\] and group_B \[2\]"):
        group_normalised_advantages(torch.zeros(3), torch.zeros(2, dtype=torch.int64))


def test_epsilon_zero_is_refused_since_equal_rewards_would_give_nan() -> None:
    with pytest.raises(ValueError, match="epsilon=0"):
        group_normalised_advantages(torch.zeros(2), torch.zeros(2, dtype=torch.int64), epsilon=0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_reaches_its_group_and_no_other(bad: float) -> None:
    rewards_B = torch.tensor([0.0, bad, 0.0, 1.0])
    advantages_B = group_normalised_advantages(rewards_B, torch.tensor([0, 0, 1, 1]))
    assert advantages_B.isfinite().tolist() == [False, False, True, True]
