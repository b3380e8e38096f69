"""Rows of a batch, and the way from one stage to the next."""

import pytest
import torch

from mindrl.batch.experience import Minibatch
from mindrl.batch.sequences import Sequences

LENGTHS = (3, 6, 4, 2)


def sequences() -> Sequences:
    """Make rows of 3, 6, 4 and 2 tokens; token t of row b is 10 b + t."""
    B, T = len(LENGTHS), max(LENGTHS)
    lengths_B = torch.tensor(LENGTHS)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    tokens_BT = (10 * torch.arange(B)[:, None] + torch.arange(T)) * inside_BT
    return Sequences(
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (torch.arange(T) >= 1),
    )


def test_rows_come_in_the_order_asked_for_cut_to_the_longest_of_them() -> None:
    part = sequences().rows(torch.tensor([2, 0]))
    assert part.tokens_BT.tolist() == [[20, 21, 22, 23], [0, 1, 2, 0]]
    assert part.lengths_B.tolist() == [4, 3]
    assert part.response_mask_BT.int().tolist() == [[0, 1, 1, 1], [0, 1, 1, 0]]
    assert part.tokens_BT.is_contiguous()


def test_the_next_stage_has_the_columns_of_both_and_the_new_ones() -> None:
    plain = sequences()
    columns_BT = {
        name: torch.full(plain.tokens_BT.shape, float(at))
        for at, name in enumerate(("old_logprobs_BT", "advantages_BT", "token_weights_BT"))
    }
    minibatch = plain.into(Minibatch, **columns_BT, ref_logprobs_BT=None)
    assert minibatch.tokens_BT is plain.tokens_BT
    assert minibatch.lengths_B is plain.lengths_B
    assert minibatch.advantages_BT is columns_BT["advantages_BT"]
    assert minibatch.ref_logprobs_BT is None
    back = minibatch.into(Sequences)
    assert type(back) is Sequences
    assert back.response_mask_BT is plain.response_mask_BT


def test_a_stage_without_one_of_its_columns_is_our_own_mistake() -> None:
    columns_BT = {"old_logprobs_BT": None, "advantages_BT": None, "token_weights_BT": None}
    with pytest.raises(TypeError, match="ref_logprobs_BT"):
        sequences().into(Minibatch, **columns_BT)
