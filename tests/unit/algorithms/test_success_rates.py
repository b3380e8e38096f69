"""avg@n and pass@k against enumeration, and the interval against its promise."""

import statistics
from itertools import combinations

import numpy as np
import pytest

from mindrl.algorithms.success_rates import pass_at_k, rate, success_rates


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_share_of_all_choices_with_a_right_answer(right: int, k: int) -> None:
    answers = [place < right for place in range(5)]
    chosen = [any(each) for each in combinations(answers, k)]
    assert pass_at_k(5, right, k) == pytest.approx(statistics.fmean(chosen))


def test_four_answers_give_their_mean_pass_at_2_and_pass_at_4() -> None:
    # Prompts with 2, 0 and 4 right answers of 4: pass@2 is 5/6, 0 and 1.
    shares = [1.0, 0.0, 1.0, 0.0] + [0.0] * 4 + [1.0] * 4
    found = success_rates(shares, 4)
    assert list(found) == ["avg@4", "pass@2", "pass@4"]
    assert found["avg@4"].value == 0.5
    assert found["pass@2"].value == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert found["pass@4"].value == pytest.approx(2 / 3)


def test_one_answer_has_a_mean_alone_and_half_right_is_not_right() -> None:
    assert list(success_rates([1.0, 0.0], 1)) == ["avg@1"]
    halves = success_rates([0.5, 0.5], 2)
    assert (halves["avg@2"].value, halves["pass@2"].value) == (0.5, 0.0)


def test_of_one_answer_a_prompt_the_interval_is_wilsons() -> None:
    # 8 of 10, by his formula: (0.8 + z2/20 -/+ z sqrt(0.16/10 + z2/400)) / (1 + z2/10).
    found = rate([1.0] * 8 + [0.0] * 2, 1)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)
    assert str(found) == "0.800 [0.490, 0.943]"


def test_all_right_of_ten_is_no_proof_of_perfection() -> None:
    assert rate([1.0] * 10, 8).low == pytest.approx(1 / (1 + 1.959964**2 / 10))


@pytest.mark.parametrize("alike", [False, True])
def test_about_95_of_100_intervals_hold_the_truth_whether_answers_are_alike_or_not(
    alike: bool,
) -> None:
    draws, held = np.random.default_rng(7), 0
    for _ in range(1000):
        # The chance of a right answer: of each prompt 0.4, or of most prompts near 0 or 1.
        chance_P = draws.beta(0.4, 0.6, 60) if alike else np.full(60, 0.4)
        right_P = draws.binomial(8, chance_P)
        found = rate((right_P / 8).tolist(), 8)
        held += found.low <= 0.4 <= found.high
    assert 930 <= held <= 980
