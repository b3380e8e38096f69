"""To fail never pays better than to answer."""

import json
from pathlib import Path

import pytest
from scorers import scorer_of

from mindrl.rewards.functions import BUILTIN_REWARDS, ScoreRange, score_range, scores
from mindrl.rewards.scores import Failure, Scores, WorstScores

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


def test_the_acc_of_a_function_measures_accuracy_and_its_score_is_the_reward(
    tmp_path: Path,
) -> None:
    file = tmp_path / "partial.py"
    file.write_text(
        "def partial(response, reference):\n"
        "    if response == 'none': raise ValueError(response)\n"
        "    right = response == reference\n"
        "    plain = 0.9 if response == 'plain' else None\n"
        "    return plain or {'score': 1.0 if right else 0.5, 'acc': right}\n"
    )
    name = f"{file}:partial"
    with scorer_of([name, "math_verify"], [1.0, 1.0], 5.0, 1) as scorer:
        first = scorer.score(["4", "near", "none", "plain"], ["4"] * 4)
        second = scorer.score(["4"], ["4"])
    # Without `acc` it is the place of the score in its range.
    assert first.shares(name) == [1.0, 0.0, 0.0, 0.9]
    assert first.components[name] == (1.0, 0.5, 0.0, 0.9)
    joined = Scores.joined([first, second])
    assert joined.shares(name) == [1.0, 0.0, 0.0, 0.9, 1.0]
    assert joined.rows([4, 1]).shares(name) == [1.0, 0.0]


def test_a_resumed_run_gives_failures_the_worst_score_of_the_steps_before(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("def deep(response, reference):\n    return float(response)\n")
    name = f"{file}:deep"
    with scorer_of([name], [1.0], 5.0, 1) as scorer:
        assert scorer.score(["-3.5", "none"], ["", ""]).rewards == (-3.5, -3.5)
        state = json.loads(json.dumps(scorer.state()))
        assert scorer.score(["1", "none"], ["", ""]).rewards == (1.0, -3.5)
        # A run that begins anew in the same process has seen no score.
        scorer.load_state({})
        assert scorer.score(["1", "none"], ["", ""]).rewards == (1.0, 0.0)
        scorer.load_state(state)
        assert scorer.score(["1", "none"], ["", ""]).rewards == (1.0, -3.5)
