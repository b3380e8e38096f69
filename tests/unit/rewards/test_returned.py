"""What counts as a score of what functions return."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from mindrl.rewards.returned import score_of, scores_of


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True)),
        *(np.array(1.0), torch.tensor(1), torch.tensor(1.0, requires_grad=True)),
        *({"score": 1.0, "acc": 0.5}, {"score": torch.tensor(1.0)}),
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
    with pytest.raises(ValueError, match="need a list of 2 numbers, for it takes lists"):
        scores_of(value, 2)
