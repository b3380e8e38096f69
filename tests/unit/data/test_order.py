"""The order of prompts over steps and epochs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.data.order import MixedOrder, PromptOrder


def visits(order: PromptOrder, steps: int, per_step: int) -> list[int]:
    return [index for step in range(steps) for index in order.indices(step * per_step, per_step)]


def test_without_shuffle_7_prompts_in_steps_of_3_run_in_file_order_and_wrap_around() -> None:
    order = PromptOrder(count=7, seed=0, shuffle=False)
    assert [order.indices(place, 3) for place in (0, 3, 6, 9)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 0, 1],
        [2, 3, 4],
    ]


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    per_step=st.integers(1, 50),
    shuffle=st.booleans(),
)
def test_every_epoch_visits_every_prompt_once_whatever_the_step_size(
    count: int, seed: int, per_step: int, shuffle: bool
) -> None:
    order = PromptOrder(count=count, seed=seed, shuffle=shuffle)
    seen = visits(order, -(-3 * count // per_step), per_step)
    for epoch in range(3):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(step=st.integers(0, 10**6), per_step=st.integers(1, 64), other=st.sampled_from([2, 3, 5, 8]))
def test_a_step_depends_on_its_position_only_not_on_the_steps_before(
    step: int, per_step: int, other: int
) -> None:
    order = PromptOrder(count=31, seed=5, shuffle=True)
    first, count = step * per_step, other * per_step
    parts = [order.indices(place, per_step) for place in range(first, first + count, per_step)]
    assert order.indices(first, count) == [index for part in parts for index in part]


def test_each_epoch_has_an_order_of_its_own() -> None:
    order = PromptOrder(count=100, seed=3, shuffle=True)
    first, second = order.indices(0, 100), order.indices(100, 100)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_equal_seeds_give_equal_orders_and_others_do_not(seed: int) -> None:
    order = PromptOrder(count=100, seed=seed, shuffle=True).indices(0, 100)
    assert PromptOrder(count=100, seed=seed, shuffle=True).indices(0, 100) == order
    assert PromptOrder(count=100, seed=seed + 1, shuffle=True).indices(0, 100) != order


def test_more_prompts_per_step_than_in_the_file_go_through_several_epochs() -> None:
    assert PromptOrder(count=2, seed=0, shuffle=False).indices(5, 5) == [1, 0, 1, 0, 1]


def in_order(count: int, **more: Any) -> PromptOrder:
    return PromptOrder(count=count, seed=0, shuffle=False, **more)


def test_weights_of_3_and_1_share_each_step_of_4_as_3_and_1() -> None:
    mixed = MixedOrder([in_order(6), in_order(6)], [3.0, 1.0])
    # Rows 0 to 5 are of the first set, 6 to 11 of the second.
    assert mixed.indices(0, 4) == [0, 1, 6, 2]
    assert mixed.indices(4, 4) == [3, 4, 7, 5]
    assert [sum(index > 5 for index in mixed.indices(4 * step, 4)) for step in range(9)] == [1] * 9


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    place=st.integers(0, 5000),
)
@settings(max_examples=100, deadline=None)
def test_a_mixture_is_a_function_of_the_place_and_keeps_its_shares(
    weights: list[float], place: int
) -> None:
    orders = [in_order(7) for _ in weights]
    mixed = MixedOrder(orders, weights)
    counts = mixed.drawn(place)
    assert sum(counts) == place
    shares = [weight / sum(weights) for weight in weights]
    near = len(weights) / 2 + 1
    assert all(abs(n - share * place) <= near for n, share in zip(counts, shares, strict=True))
    # What is taken at once is what is taken in parts.
    assert mixed.indices(place, 20) == mixed.indices(place, 7) + mixed.indices(place + 7, 13)


def test_each_set_of_a_mixture_is_visited_once_before_any_of_it_is_again() -> None:
    orders = [PromptOrder(5, 1, shuffle=True), PromptOrder(20, 1, shuffle=True, stream=1)]
    indices = MixedOrder(orders, [1.0, 1.0]).indices(0, 40)
    small, large = ([n for n in indices if n < 5], [n - 5 for n in indices if n >= 5])
    assert sorted(large) == [*range(20)]
    assert [sorted(small[first : first + 5]) for first in range(0, 20, 5)] == [[*range(5)]] * 4


def test_sets_of_one_length_are_not_shuffled_alike() -> None:
    first, second = (PromptOrder(50, 3, shuffle=True, stream=n).indices(0, 50) for n in range(2))
    assert first != second


def test_stages_follow_each_other_and_are_shuffled_each_by_itself() -> None:
    easiest_first = (*range(10, 20), *range(10))
    order = PromptOrder(20, 0, shuffle=True, sequence=easiest_first, stages=4)
    for epoch in range(2):
        visited = order.indices(20 * epoch, 20)
        stages = [sorted(visited[first : first + 5]) for first in range(0, 20, 5)]
        assert stages == [[*range(first, first + 5)] for first in (10, 15, 0, 5)]
        assert visited != list(easiest_first)
    assert in_order(20, sequence=easiest_first).indices(18, 4) == [8, 9, 10, 11]
