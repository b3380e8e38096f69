"""The order of prompts over steps and epochs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrl.data.run_data import PromptOrder


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
