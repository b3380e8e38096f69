"""Rows of a batch, and the way from one stage to the next."""

import pickle
from dataclasses import replace

import pytest
import torch

from mindrl.batch.experience import Minibatch
from mindrl.batch.likely_tokens import LikelyTokens
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


def test_likely_tokens_follow_their_sequences_also_from_one_process_to_another() -> None:
    plain = sequences()
    numbers_R = torch.cat([10 * row + torch.arange(1, n) for row, n in enumerate(LENGTHS)])
    likely = LikelyTokens(
        ids_KR=torch.stack([numbers_R, 100 + numbers_R]),
        logprobs_KR=-torch.stack([numbers_R, 100 + numbers_R]).float(),
        counts_B=torch.tensor(LENGTHS) - 1,
    )
    given = replace(plain, likely=likely)
    part = pickle.loads(pickle.dumps(given)).rows(torch.tensor([2, 0, 2]))
    assert part.likely.counts_B.tolist() == [3, 2, 3]
    chosen = [21, 22, 23, 1, 2, 21, 22, 23]
    assert part.likely.ids_KR.tolist() == [chosen, [100 + each for each in chosen]]
    assert part.likely.logprobs_KR.equal(-part.likely.ids_KR.float())
    both = LikelyTokens.joined([part.rows(slice(1)).likely, part.rows(slice(1, 3)).likely])
    assert both.ids_KR.equal(part.likely.ids_KR)
    assert both.counts_B.equal(part.likely.counts_B)
    numbers, logprobs = likely.at(torch.tensor([10, 0]), torch.device("cpu"))
    assert numbers.tolist() == [[31, 131], [1, 101]]
    assert logprobs.tolist() == [[-31.0, -131.0], [-1.0, -101.0]]
