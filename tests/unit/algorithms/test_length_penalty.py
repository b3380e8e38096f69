"""What a response loses for its length."""

import pytest

from mindrl.algorithms.length_penalty import LengthPenalty


@pytest.mark.parametrize(
    ("length", "change"), [(1, 0.0), (60, 0.0), (61, -0.05), (80, -1.0), (100, -2.0), (110, -2.0)]
)
def test_the_last_40_of_100_tokens_cost_a_fortieth_of_2_each(length: int, change: float) -> None:
    penalty = LengthPenalty(longest=100, buffer=40, factor=2.0)
    assert penalty(length) == pytest.approx(change, abs=1e-12)
