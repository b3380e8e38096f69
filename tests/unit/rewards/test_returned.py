"""What counts as a score of what functions return."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from mindrl.rewards.functions import score_range
from mindrl.rewards.returned import score_of, scores_of
from mindrl.rewards.scores import Graded


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True)),
        *(np.array(1.0), torch.tensor(1), torch.tensor(1.0, requires_grad=True)),
        *({"score": 1.0, "acc": None}, {"score": torch.tensor(1.0), "from": "a test"}),
    ],
)
def test_numbers_of_all_kinds_are_the_score_1(value: object) -> None:
    assert (score_of(value), type(score_of(value))) == (1.0, float)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "1.0", [1.0], (1.0, 2.0), {"reward": 1.0}, Decimal(1), 1j),
        *(float("inf"), np.float64("nan"), torch.tensor(float("nan"))),
        *(np.array([1.0]), torch.tensor([1.0])),
    ],
)
def test_what_is_no_finite_number_is_none(value: object) -> None:
    with pytest.raises(ValueError, match="need a finite number"):
        score_of(value)


@pytest.mark.parametrize(
    "value", [[0.5, None], (0.5, None), np.array([0.5, 1.0]), torch.tensor([0.5, 1.0])]
)
def test_lists_tuples_and_tensors_of_one_dimension_are_lists_of_scores(value: object) -> None:
    assert scores_of(value, 2)[0] == 0.5
    with pytest.raises(ValueError, match="returned 2 scores; need 3, one for each response"):
        scores_of(value, 3)


@pytest.mark.parametrize("value", [None, 1.0, "10", {0: 1.0}, np.ones((2, 1))])
def test_what_is_no_list_says_so(value: object) -> None:
    with pytest.raises(ValueError, match="need a list of 2 numbers, because it takes lists"):
        scores_of(value, 2)


@pytest.mark.parametrize(
    "value", [1.1e9, 1e39, -1e308, 10**400, np.float64(1e300), {"score": 1e39}]
)
def test_a_number_whose_squares_float32_does_not_hold_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"^returned .*; need a finite number of at most 1e\+09"):
        score_of(value)


def test_the_largest_scores_at_the_largest_weight_have_squares_in_float32() -> None:
    assert score_of(-1e9) == -1e9
    # Times the maximum weight, in a group of the maximum size.
    assert (65536 * torch.tensor(1e9 * 1e6).square()).isfinite()


def test_ends_of_a_range_are_bounded_as_scores_are() -> None:
    def scored() -> None: ...

    vars(scored)["score_range"] = (-1e13, 1.0)
    with pytest.raises(ValueError, match=r"both finite and at most 1e\+09 in size"):
        score_range(scored)


@pytest.mark.parametrize("acc", [True, np.bool_(True), 1, torch.tensor(1.0)])
def test_the_acc_of_verl_is_kept_beside_its_score(acc: object) -> None:
    assert score_of({"score": -0.5, "acc": acc}) == Graded(score=-0.5, accuracy=1.0)


@pytest.mark.parametrize("acc", ["yes", 2, -1.0, float("nan"), [True]])
def test_an_acc_that_is_no_accuracy_is_named(acc: object) -> None:
    with pytest.raises(ValueError, match=r"^returned 'acc': .*; need a number from 0 to 1"):
        score_of({"score": 1.0, "acc": acc})
