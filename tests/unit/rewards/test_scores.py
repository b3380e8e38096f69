"""To fail never pays better than to answer."""

import pytest

from mindrl.rewards.functions import BUILTIN_REWARDS, ScoreRange, score_range, scores
from mindrl.rewards.scores import Failure, WorstScores

FAILED = Failure(kind="timeout", detail="no score within 5 s")


def test_a_failure_gets_the_lowest_score_that_the_function_declares() -> None:
    worst = WorstScores({"f": 1.0})
    assert worst.filled({"f": (1.0, FAILED)}, {"f": ScoreRange(-1.0, 1.0)}) == {"f": (1.0, -1.0)}


def test_of_a_function_with_a_negative_weight_it_gets_the_highest() -> None:
    worst = WorstScores({"repetition": -0.5})
    found = worst.filled({"repetition": (0.25, FAILED)}, {"repetition": ScoreRange(0.0, 1.0)})
    assert found == {"repetition": (0.25, 1.0)}


def test_a_score_beyond_the_range_counts_for_the_failures_beside_it_and_of_later_batches() -> None:
    worst, ranges = WorstScores({"f": 1.0}), {"f": ScoreRange()}
    assert worst.filled({"f": (FAILED, 0.5)}, ranges) == {"f": (0.0, 0.5)}
    assert worst.filled({"f": (FAILED, -3.0)}, ranges) == {"f": (-3.0, -3.0)}
    assert worst.filled({"f": (FAILED, 1.0)}, ranges) == {"f": (-3.0, 1.0)}


def test_the_built_in_rewards_score_from_0_to_1_and_dapos_from_minus_1() -> None:
    ranges = {name: score_range(function) for name, function in BUILTIN_REWARDS.items()}
    assert ranges.pop("acc_for_dapo") == (-1.0, 1.0)
    assert set(ranges.values()) == {(0.0, 1.0)}


def test_a_range_is_declared_by_an_attribute_or_a_decorator_and_else_0_to_1() -> None:
    @scores(-2.0, 3.0)
    def declared(response: str, reference: str) -> float:
        return float(len(response) - len(reference))

    assert score_range(declared) == (-2.0, 3.0)
    assert score_range(len) == (0.0, 1.0)


@pytest.mark.parametrize(("score", "share"), [(-1.0, 0.0), (0.0, 0.5), (1.0, 1.0), (7.0, 1.0)])
def test_the_share_of_a_score_lies_between_0_and_1(score: float, share: float) -> None:
    assert ScoreRange(-1.0, 1.0).share(score) == share
