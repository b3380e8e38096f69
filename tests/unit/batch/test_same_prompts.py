"""Sequences of one prompt stay together, as far as replicas and budgets allow."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from mindrl.batch.balance import MicroBatching, partition, sequence_costs
from mindrl.batch.sequence_trees import SequenceTree, sequence_trees
from mindrl.batch.sequences import Sequences
from mindrl.batch.shared_prompts import cut, deal
from mindrl.training.rows import read_after_last


def samples_of(rows: Sequence[int], prompt: int) -> SequenceTree:
    """Return the tree of sequences with a prompt of as many tokens."""
    return SequenceTree(tuple(rows), (0, *[prompt] * (len(rows) - 1)))


def sequences(rows: Sequence[tuple[str, str]]) -> Sequences:
    """Return prompts and answers as sequences with a token for each letter."""
    texts = [prompt + answer for prompt, answer in rows]
    width = max(map(len, texts))
    first_B = torch.tensor([len(prompt) for prompt, _ in rows])
    lengths_B = torch.tensor([len(text) for text in texts])
    position_T = torch.arange(width)
    return Sequences(
        tokens_BT=torch.tensor([[*map(ord, text.ljust(width, "\0"))] for text in texts]),
        lengths_B=lengths_B,
        response_mask_BT=(position_T >= first_B[:, None]) & (position_T < lengths_B[:, None]),
    )


BATCH = sequences(
    [("ab", "cd"), ("abc", "d"), ("ab", "x"), ("abc", "de"), ("q", ""), ("q", ""), ("ab", "cde")]
)


def test_a_tree_has_the_same_tokens_before_the_first_requested_one() -> None:
    assert sequence_trees(BATCH, shares_prompts=True) == [
        samples_of((0, 2, 6), 2),
        samples_of((1, 3), 3),
        # Nothing is requested of these two.
        samples_of((4,), 0),
        samples_of((5,), 0),
    ]
    alone = sequence_trees(BATCH, shares_prompts=False)
    assert alone == [samples_of((row,), 0) for row in range(7)]


def test_equal_sequences_that_are_read_after_their_ends_share_no_prompt() -> None:
    batch = read_after_last(sequences([("ab", "cd"), ("ab", "cd"), ("ab", "c")]))
    alone = [samples_of((row,), 0) for row in range(3)]
    assert sequence_trees(batch, shares_prompts=True) == alone


def test_without_sharing_replicas_and_micro_batches_are_balanced_by_sequence() -> None:
    lengths = [9, 4, 7, 3, 8, 5, 6]
    alone = sequence_trees(BATCH, shares_prompts=False)
    costs = partial(sequence_costs, linear=2.0, quadratic=0.1)
    for replicas in (1, 2, 3):
        dealt = deal(alone, lengths, costs, replicas)
        assert dealt == partition(costs(lengths), replicas)
    for way in (MicroBatching(sequences=2), MicroBatching(sequences=1, tokens=12)):
        assert cut(alone, lengths, way) == way.cut(lengths)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 10 + 1 + 2 + 3 and 6 + 4 + 4 tokens.
        (16, [[0, 1, 2], [3, 4]]),
        (30, [[0, 1, 2, 3, 4]]),
        # A group that exceeds the budget is divided, and each part has the prompt.
        (15, [[0], [1, 2], [3, 4]]),
        (13, [[0], [1], [2], [3], [4]]),
    ],
)
def test_a_prompt_counts_once_in_a_micro_batch(tokens: int, expected: list[list[int]]) -> None:
    found = [samples_of((0, 1, 2), 10), samples_of((3, 4), 6)]
    way = MicroBatching(sequences=1, tokens=tokens)
    assert cut(found, [11, 12, 13, 10, 10], way) == expected


def test_a_longer_sequence_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 13 tokens exceeds the budget of 12"):
        cut([samples_of((0, 1), 10)], [13, 11], MicroBatching(sequences=1, tokens=12))


def test_replicas_get_whole_groups_of_equal_cost_with_the_prompt_once() -> None:
    lengths = [30] * 4 + [12] * 4 + [21] * 4 + [21] * 4
    prompts = {0: 20, 4: 2, 8: 11, 12: 11}
    found = [samples_of(tuple(range(at, at + 4)), prompt) for at, prompt in prompts.items()]
    # 60, 42, 51 and 51 tokens.
    assert deal(found, lengths, list, 2) == [[*range(8)], [*range(8, 16)]]


def test_few_groups_are_divided_over_the_replicas() -> None:
    dealt = deal([samples_of((0, 1, 2, 3), 5)], [9, 9, 9, 9], list, 4)
    assert sorted(map(len, dealt)) == [1, 1, 1, 1]
    assert sorted(row for rows in dealt for row in rows) == [0, 1, 2, 3]
