"""Token weights against a plain Python reference."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mindrl.algorithms.token_weights import (
    sequence_mean_weights,
    sequence_sum_weights,
    token_mean_weights,
)

masks = st.integers(1, 9).flatmap(
    lambda width: st.lists(
        st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=9
    )
)


@given(masks.filter(lambda mask: any(map(any, mask))))
@settings(max_examples=150, deadline=None)
def test_both_kinds_match_a_plain_python_reference_and_add_to_1(mask: list[list[bool]]) -> None:
    tokens = sum(map(sum, mask))
    sequences = sum(map(any, mask))
    token_BT = token_mean_weights(torch.tensor(mask))
    sequence_BT = sequence_mean_weights(torch.tensor(mask))
    assert token_BT.dtype == sequence_BT.dtype == torch.float32
    for b, row in enumerate(mask):
        for t, trained in enumerate(row):
            # One rounding to float32 is at most 6e-8 of the value.
            by_token = trained / tokens
            by_sequence = trained / (sum(row) * sequences) if trained else 0.0
            assert token_BT[b, t].item() == pytest.approx(by_token, rel=1e-7)
            assert sequence_BT[b, t].item() == pytest.approx(by_sequence, rel=1e-7)
    assert token_BT.double().sum().item() == pytest.approx(1.0, abs=1e-7)
    assert sequence_BT.double().sum().item() == pytest.approx(1.0, abs=1e-7)


def test_a_sequence_of_1_and_one_of_3_tokens_weigh_1_to_3_by_token_and_1_to_1_by_sequence() -> None:
    mask_BT = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    assert token_mean_weights(mask_BT).sum(dim=1).tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert sequence_mean_weights(mask_BT).sum(dim=1).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_a_sum_over_a_constant_weighs_a_token_alike_in_whatever_company() -> None:
    """Two sequences with tokens, at most 4 each: an eighth a token."""
    mask_BT = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    weights_BT = sequence_sum_weights(mask_BT, longest=4)
    assert weights_BT.sum(dim=1).tolist() == [0.125, 0.375, 0.0]


@pytest.mark.parametrize("weights", [token_mean_weights, sequence_mean_weights])
def test_an_update_without_any_token_is_refused(
    weights: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 3\] selects no token"):
        weights(torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"dtype torch.float32; must be torch.bool"):
        weights(torch.ones(2, 3))
