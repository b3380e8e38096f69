"""Sequences are dealt evenly, each once, and no micro-batch is over its budget of tokens."""

import random
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.batch.balance import MicroBatching, partition, sequence_costs

COSTS = st.lists(st.integers(1, 1000), max_size=40)
LENGTHS = st.lists(st.integers(1, 100), max_size=40)


def cut_by_tokens(lengths: list[int], budget: int) -> list[list[int]]:
    return MicroBatching(sequences=1, tokens=budget).cut(lengths)


def sums(costs: list[int], groups: list[list[int]]) -> list[int]:
    return [sum(costs[index] for index in group) for group in groups]


def long_tailed(count: int) -> list[int]:
    chance = random.Random(7)
    return [min(4096, 1 + int(chance.lognormvariate(6.8, 0.8))) for _ in range(count)]


def first_fit_decreasing(lengths: list[int], budget: int) -> int:
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        open_to = [at for at, left in enumerate(room) if left >= length]
        at = open_to[0] if open_to else len(room)
        room[at:] = [budget - length] if not open_to else [room[at] - length, *room[at + 1 :]]
    return len(room)


def test_4_5_6_7_8_fall_into_two_groups_of_15_although_differencing_alone_leaves_16_and_14() -> (
    None
):
    assert partition([4, 5, 6, 7, 8], 2) == [[0, 1, 2], [3, 4]]


def test_three_ranks_share_10_8_7_5_4_2_as_12_and_12_and_12() -> None:
    assert partition([10, 8, 7, 5, 4, 2], 3) == [[0, 5], [1, 4], [2, 3]]


def test_equal_costs_are_dealt_in_equal_numbers() -> None:
    assert sorted(map(len, partition([3.0] * 12, 4))) == [3, 3, 3, 3]


@given(COSTS, st.integers(1, 12))
def test_every_index_is_in_one_group_and_indices_and_groups_ascend(
    costs: list[int], parts: int
) -> None:
    groups = partition(costs, parts)
    assert len(groups) == parts
    assert sorted(index for group in groups for index in group) == list(range(len(costs)))
    assert all(group == sorted(group) for group in groups)
    filled = [group for group in groups if group]
    assert groups[: len(filled)] == sorted(filled)
    assert len(filled) == min(parts, len(costs))
    assert groups == partition(costs, parts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 12))
def test_the_sums_are_apart_by_the_largest_cost_at_most(costs: list[int], parts: int) -> None:
    found = sums(costs, partition(costs, parts))
    assert max(found) - min(found) <= max(costs)


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_the_largest_sum_is_at_most_four_thirds_of_the_least_possible(
    costs: list[int], parts: int
) -> None:
    # Michiels, Korst and Aarts, 2003: differencing is within 4/3 - 1/(3 * parts).
    dealings = product(range(parts), repeat=len(costs))
    least = min(
        max(sum(cost for cost, at in zip(costs, to, strict=True) if at == part) for part in to)
        for to in dealings
    )
    assert 3 * parts * max(sums(costs, partition(costs, parts))) <= (4 * parts - 1) * least


def test_1024_sequences_on_64_ranks_are_even_to_1_percent_and_dealt_in_turn_30_percent_off() -> (
    None
):
    lengths = long_tailed(1024)
    started = time.process_time()
    found = sums(lengths, partition(lengths, 64))
    # 0.01 s on an idle core.
    assert time.process_time() - started < 0.2
    mean = sum(lengths) / 64
    assert max(found) < 1.01 * mean
    assert max(sum(lengths[rank::64]) for rank in range(64)) > 1.3 * mean


@given(LENGTHS, st.integers(100, 400))
def test_groups_keep_the_budget_and_are_as_many_as_first_fit_decreasing_makes(
    lengths: list[int], budget: int
) -> None:
    groups = cut_by_tokens(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert max(sums(lengths, groups), default=0) <= budget
    assert all(groups)
    assert len(groups) == first_fit_decreasing(lengths, budget)


def test_a_budget_of_10_cuts_6_5_3_2_into_two_groups_of_8() -> None:
    assert cut_by_tokens([6, 5, 3, 2], 10) == [[0, 3], [1, 2]]


def test_where_balancing_is_over_the_budget_the_groups_are_those_of_first_fit() -> None:
    lengths = [4, 4, 3, 3, 7, 2]
    assert sorted(sums(lengths, partition(lengths, 3))) == [7, 7, 9]
    assert cut_by_tokens(lengths, 8) == [[0, 1], [2, 3, 5], [4]]


def test_a_sequence_longer_than_the_budget_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"a sequence of 12 tokens exceeds the budget of 10$"):
        cut_by_tokens([3, 12], 10)


def test_without_a_budget_micro_batches_are_runs_of_sequences_in_order() -> None:
    assert MicroBatching(sequences=2).cut([9, 9, 9, 9, 9]) == [[0, 1], [2, 3], [4]]
    assert MicroBatching(sequences=2).cut([]) == []


def test_with_a_budget_micro_batches_have_as_many_sequences_as_fit() -> None:
    assert MicroBatching(sequences=1, tokens=10).cut([6, 5, 3, 2]) == [[0, 3], [1, 2]]


def test_3_tokens_at_10_a_token_and_2_a_square_token_cost_48() -> None:
    assert sequence_costs([3, 1], linear=10, quadratic=2) == [48, 12]
