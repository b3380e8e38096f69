"""Replicas get whole prompts in turn, then prompts with answers of equal length in sum."""

import pytest

from mindrl.batch.prompts import Prompt
from mindrl.trainer.prompt_shares import PromptShares


def prompts(count: int) -> list[Prompt]:
    return [
        Prompt(uid=number, token_ids=(number, 7), text="", answer="") for number in range(count)
    ]


def test_prompts_are_dealt_in_turn_with_all_their_samples() -> None:
    dealt = PromptShares().deal(prompts(8), 2, 2)
    assert dealt == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]


def test_prompts_with_longer_answers_before_are_spread() -> None:
    shares, asked = PromptShares(), prompts(9)
    # Without an answer to the last one, it is taken to be as long as the mean, 4.5.
    shares.learn(asked[:8], 1, [1, 2, 3, 4, 5, 6, 7, 8])
    dealt = shares.deal(asked, 1, 2)
    assert sorted(dealt[0] + dealt[1]) == [*range(9)]
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 4.5]
    sums = [sum(tokens[row] for row in rows) for rows in dealt]
    assert abs(sums[0] - sums[1]) <= 0.5


def test_of_a_replica_the_longest_begin_first() -> None:
    shares, asked = PromptShares(), prompts(4)
    shares.learn(asked, 2, [1, 3, 9, 9, 4, 6, 7, 7])
    assert shares.deal(asked, 2, 1) == [[2, 3, 6, 7, 4, 5, 0, 1]]


def test_the_newest_answers_count() -> None:
    shares, asked = PromptShares(), prompts(8)
    shares.learn(asked, 2, [9, 9] * 8)
    shares.learn(asked, 2, [1, 3] + [5, 5] * 7)
    assert [*shares.tokens.values()] == [2, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("count", "samples", "replicas"), [(1, 8, 2), (3, 8, 2), (2, 3, 4), (1, 1, 4), (0, 8, 2)]
)
def test_few_prompts_are_divided_and_each_row_is_dealt_once(
    count: int, samples: int, replicas: int, known: bool
) -> None:
    shares, asked = PromptShares(), prompts(count)
    if known:
        shares.learn(asked, samples, [4] * count * samples)
    dealt = shares.deal(asked, samples, replicas)
    assert len(dealt) == replicas
    assert sorted(row for rows in dealt for row in rows) == [*range(count * samples)]
    sizes = [*map(len, dealt)]
    assert max(sizes) - min(sizes) <= 1
