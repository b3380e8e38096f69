"""Which groups begin and which are trained on: the bound on their age, and what is kept of them."""

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mindrl.trainer.source.bounds import PoolBounds
from mindrl.trainer.source.group import OpenGroup, OpenSequence, PoolState


def bounds(
    per_step: int = 2, in_flight: int = 4, max_staleness: int = 1, last_step: int = 9
) -> PoolBounds:
    return PoolBounds(
        per_step=per_step, in_flight=in_flight, max_staleness=max_staleness, last_step=last_step
    )


def test_the_oldest_that_are_whole_are_trained_on() -> None:
    assert bounds().ready(3, [2, 3, 3, 3], [True, False, True, True]) == [0, 2]


def test_one_that_would_get_too_old_is_waited_for() -> None:
    """Begun in step 2, it must be trained on in step 3: two others are not enough."""
    assert bounds().ready(3, [2, 3, 3, 3], [False, True, True, True]) is None
    assert bounds(max_staleness=2).ready(3, [2, 3, 3, 3], [False, True, True, True]) == [1, 2]


def test_so_many_of_one_age_that_later_steps_could_not_train_on_all_are_waited_for() -> None:
    """Four of step 2 at two a step: the third and the fourth have step 4, the two of step 3 not."""
    whole = [False, False, False, False, True, True]
    assert bounds(max_staleness=2).ready(3, [2, 2, 2, 2, 3, 3], whole) is None
    assert bounds(max_staleness=3).ready(3, [2, 2, 2, 2, 3, 3], whole) == [4, 5]


@pytest.mark.parametrize(
    ("staleness", "step", "begin"),
    [(0, 1, 2), (1, 1, 4), (2, 1, 4), (1, 8, 4), (1, 9, 2)],
)
def test_no_more_begin_than_can_be_trained_on_in_time(
    staleness: int, step: int, begin: int
) -> None:
    assert bounds(max_staleness=staleness).to_start(step, 0) == begin


def test_groups_that_were_found_leave_no_room_for_others() -> None:
    """Two a step, four in flight: one was found, one open, so two more can be used in time."""
    assert bounds().to_start(1, 1, found=1, likely=1) == 2
    assert bounds().to_start(9, 0, found=1, likely=2) == 1
    # One step off no more are in flight than a step needs, but for those that replace others.
    one_off = bounds(4, 4)
    assert one_off.to_start(2, 4) == 0
    assert one_off.to_start(2, 0, found=1, likely=4) == 4
    # Without staleness what is too much is given back.
    assert bounds(4, 4, 0).to_start(9, 0, found=3, likely=3) == 3


def test_in_the_order_of_the_data_an_incomplete_group_is_waited_for() -> None:
    in_order = PoolBounds(per_step=2, in_flight=2, max_staleness=1, last_step=9, in_order=True)
    assert in_order.ready(2, [2, 2, 2], [False, True, True], 1) is None
    assert in_order.ready(2, [2, 2, 2], [True, False, True], 1) == [0]
    assert bounds().ready(2, [2, 2, 2], [False, True, True], 1) == [1]


@given(
    per_step=st.integers(1, 4),
    times=st.integers(1, 4),
    max_staleness=st.integers(0, 3),
    lengths=st.lists(st.integers(1, 60), min_size=200, max_size=200),
    round_steps=st.integers(1, 9),
)
def test_whatever_the_lengths_each_group_is_trained_on_once_and_none_is_too_old(
    per_step: int, times: int, max_staleness: int, lengths: list[int], round_steps: int
) -> None:
    last = 8
    pool = bounds(per_step, per_step * times, max_staleness, last)
    alive: list[tuple[int, int]] = []
    left, begun, trained = {}, 0, []
    for step in range(1, last + 1):
        for _ in range(pool.to_start(step, len(alive))):
            alive.append((begun, step))
            left[begun] = lengths[begun]
            begun += 1
        taken = None
        while taken is None:
            left = {group: max(0, length - round_steps) for group, length in left.items()}
            whole = [not left[group] for group, _ in alive]
            taken = pool.ready(step, [born for _, born in alive], whole)
            assert taken is not None or not all(whole)
        assert len(taken) == per_step
        assert all(step - alive[place][1] <= max_staleness for place in taken)
        trained += [alive[place][0] for place in taken]
        alive = [each for place, each in enumerate(alive) if place not in taken]
    # What was begun was trained on by the last step.
    assert not alive
    assert sorted(trained) == list(range(begun)) == list(range(per_step * last))


def engine_steps(times: int, staleness: int, *, steps: int = 40, round_steps: int = 32) -> float:
    """Count the engine steps of a step of 8 groups of 8 with a long tail, which is drawn alike.

    Responses have 50 to 150 tokens; one of 50 has 20 times as many.
    """
    draw = random.Random(0)
    pool = bounds(8, 8 * times, staleness, last_step=10**6)
    alive: list[tuple[int, int]] = []
    taken_steps = 0
    for step in range(1, steps + 1):
        for _ in range(pool.to_start(step, len(alive))):
            lengths = [draw.randint(50, 150) for _ in range(8)]
            alive.append(
                (step, max(each * (20 if draw.random() < 0.02 else 1) for each in lengths))
            )
        taken = None
        while taken is None:
            taken_steps += round_steps
            alive = [(born, left - round_steps) for born, left in alive]
            born_G, whole_G = [born for born, _ in alive], [left <= 0 for _, left in alive]
            taken = pool.ready(step, born_G, whole_G)
        alive = [each for place, each in enumerate(alive) if place not in taken]
    return taken_steps / steps


def test_with_a_long_tail_a_step_ends_after_two_thirds_of_the_engine_steps_or_fewer() -> None:
    """The same prompts are begun in the same order: what differs is who is waited for."""
    plain = engine_steps(1, 0)
    assert plain / engine_steps(2, 1) > 1.5
    assert plain / engine_steps(2, 2) > 2.0
    assert plain / engine_steps(4, 4) > 3.0


def test_what_is_under_way_is_the_same_to_the_bit_behind_json() -> None:
    sequence = OpenSequence.started(3).with_more(
        torch.tensor([151_999, 0]), torch.tensor([-1 / 3, -1e-45]), step=4, finished=False
    )
    longer = sequence.with_more(torch.tensor([7]), torch.tensor([-0.0]), step=5, finished=True)
    groups = (OpenGroup(prompt=11, start_step=4, sequences=(longer, OpenSequence.started(1))),)
    state = json.loads(json.dumps(PoolState(next_prompt=12, groups=groups).to_json()))
    found = PoolState.of_json(state)
    assert (found.next_prompt, found.groups[0].prompt, found.groups[0].start_step) == (12, 11, 4)
    first, second = found.groups[0].sequences
    assert first.tokens_N.tolist() == [151_999, 0, 7]
    assert first.steps_N.tolist() == [4, 4, 5]
    assert first.logprobs_N.view(torch.int32).equal(longer.logprobs_N.view(torch.int32))
    assert (first.sample, first.finished, first.is_complete(9)) == (3, True, True)
    assert (second.sample, second.is_complete(9), len(second.tokens_N)) == (1, False, 0)
