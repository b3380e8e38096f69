"""The one memory schedule: what leaves a device, what comes, and what is copied."""

from collections.abc import Collection
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrl.config.layout_keys import Role
from mindrl.memory.schedule import (
    DEAD_AFTER_USE,
    NEEDS,
    ROLLOUT_REGIONS,
    MoveKind,
    Phase,
    Region,
    after,
    copied_regions,
    label_of,
    moves,
    step_phases,
    timeline,
)

EVERY_ROLE = get_args(Role)
ALL = frozenset(Region) - ROLLOUT_REGIONS - {Region.STAGING}
TRAINED = frozenset(NEEDS[Phase.TRAIN])
movables = st.frozensets(st.sampled_from(sorted(ALL, key=lambda region: region.value)))


def labels(resident: Collection[Region], phase: Phase, movable: Collection[Region]) -> list[str]:
    return [label_of(move) for move in moves(resident, phase, movable)]


def test_the_way_from_an_update_to_a_rollout_releases_first_and_brings_the_kv_cache_last() -> None:
    assert labels(TRAINED, Phase.ROLLOUT, ALL) == [
        "release actor_gradients",
        "release actor_optimizer",
        "bring rollout_weights",
        "reshard",
        "release actor_weights",
        "bring kv_cache",
    ]


def test_what_may_not_leave_stays() -> None:
    assert labels(TRAINED, Phase.ROLLOUT, set()) == [
        "bring rollout_weights",
        "reshard",
        "bring kv_cache",
    ]


def test_the_way_out_of_a_rollout_puts_the_whole_engine_to_sleep_first() -> None:
    there = NEEDS[Phase.ROLLOUT]
    assert labels(there, Phase.REFERENCE, ALL) == [
        "release rollout",
        "bring reference_weights",
    ]


def test_a_step_of_every_role_takes_eight_phases_and_one_of_grpo_three() -> None:
    assert [phase.value for phase in step_phases(EVERY_ROLE)] == [
        "rollout",
        "reward",
        "reference",
        "teacher",
        "forward",
        "critic_forward",
        "critic_train",
        "train",
    ]
    assert step_phases(["actor"]) == (Phase.ROLLOUT, Phase.FORWARD, Phase.TRAIN)


def test_messages_are_on_the_device_during_the_reshard_alone() -> None:
    step = timeline(step_phases(EVERY_ROLE), ALL, TRAINED)
    assert [each.label for each in step if Region.STAGING in each.resident] == ["reshard"]


@given(movable=movables, phases=st.lists(st.sampled_from(Phase), min_size=1, max_size=12))
def test_every_phase_finds_what_it_needs_and_nothing_that_may_leave(
    movable: frozenset[Region], phases: list[Phase]
) -> None:
    there: frozenset[Region] = TRAINED
    for phase in phases:
        there = after(there, moves(there, phase, movable))
        assert set(NEEDS[phase]) <= there
        assert there - set(NEEDS[phase]) <= ALL - movable
        assert moves(there, phase, movable) == []


@given(movable=movables, phases=st.lists(st.sampled_from(Phase), min_size=1, max_size=12))
def test_no_region_comes_twice_or_leaves_where_it_is_not(
    movable: frozenset[Region], phases: list[Phase]
) -> None:
    there: frozenset[Region] = TRAINED
    for phase in phases:
        for move in moves(there, phase, movable):
            assert (move.region in there) == (move.kind is not MoveKind.ONLOAD)
            there = after(there, [move])


@pytest.mark.parametrize("first", list(Phase))
def test_optimizers_and_kv_cache_are_never_on_the_device_together(first: Phase) -> None:
    both = {Region.ACTOR_OPTIMIZER, Region.CRITIC_OPTIMIZER}
    way = [first, *step_phases(EVERY_ROLE), first]
    for each in timeline(way, ALL, TRAINED):
        assert not (Region.KV_CACHE in each.resident and both & each.resident), each


def test_a_device_that_all_leave_never_has_more_than_the_larger_of_two_phases() -> None:
    for first, second in product(Phase, Phase):
        there = after(TRAINED, moves(TRAINED, first, ALL))
        for each in timeline([second], ALL, there):
            needs = [set(NEEDS[phase]) for phase in (first, second)]
            needs.append({Region.ACTOR_WEIGHTS, Region.ROLLOUT_WEIGHTS, Region.STAGING})
            assert any(each.resident <= need for need in needs), (first, second, each)


def test_a_second_step_copies_what_updates_changed_out_and_each_weight_back_once() -> None:
    phases = step_phases(EVERY_ROLE)
    first = copied_regions(timeline(phases, ALL, TRAINED))
    second = copied_regions(timeline(phases * 2, ALL, TRAINED))
    out, back = (both[len(one) :] for one, both in zip(first, second, strict=True))
    assert sorted(region.value for region in out) == [
        "actor_optimizer",
        "actor_weights",
        "critic_optimizer",
        "critic_weights",
    ]
    # The critic leaves for the actor between log-probs and update, so the actor comes twice.
    assert sorted(region.value for region in back) == [
        "actor_optimizer",
        "actor_weights",
        "actor_weights",
        "critic_optimizer",
        "critic_weights",
        "reference_weights",
        "reward_weights",
        "teacher_weights",
    ]
    assert not {*out, *back} & DEAD_AFTER_USE


def test_nothing_is_copied_where_nothing_may_leave() -> None:
    assert copied_regions(timeline(step_phases(EVERY_ROLE) * 2, set(), ALL)) == ([], [])
