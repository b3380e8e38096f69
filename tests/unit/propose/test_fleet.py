"""How simulated replicas are dealt to, looked at and stopped, counted by hand."""

import pytest

from mindrl.propose.decoding import Drawing, Rates
from mindrl.propose.fleet import Fleet

RATES = Rates(engine_step=0.01, sequence_more=0.01)


def drawing(group: int, left: int, context: int = 10, *, is_started: bool = False) -> Drawing:
    return Drawing(group=group, left=left, context=context, is_started=is_started)


def held(fleet: Fleet) -> list[list[int]]:
    """Return the groups of what each replica has."""
    return [sorted(each.group for _, _, each in replica.ends) for replica in fleet.replicas]


def test_ahead_a_group_goes_to_who_has_least_tokens_and_stays_together() -> None:
    fleet = Fleet(RATES, 2, "groups", 32)
    long, *short = drawing(0, 10, 100), *(drawing(group, 10) for group in (1, 1, 2))
    fleet.add([long, *short], 0.0)
    assert held(fleet) == [[0], [1, 1, 2]]


def test_ahead_each_replica_has_rounds_of_its_own_and_is_seen_behind_them() -> None:
    """Steps of 0.02 s with one sequence, of 0.03 s with two; rounds of 32."""
    fleet = Fleet(RATES, 2, "groups", 32)
    fleet.add([drawing(0, 40, 30), drawing(1, 40), drawing(2, 80)], 0.0)
    seen = fleet.go_on()
    # Both of its rounds: nothing is left that would be drawn in all of the second.
    assert (seen.at, [each.group for each in seen.whole]) == (pytest.approx(0.8), [0])
    seen = fleet.go_on()
    assert (seen.at, [each.group for each in seen.whole]) == (pytest.approx(40 * 0.03 + 0.48), [1])


def test_who_is_stopped_ends_its_round_and_gives_back_what_is_not_whole() -> None:
    fleet = Fleet(RATES, 3, "groups", 32)
    fleet.add([drawing(0, 100, 30), drawing(1, 40, 30), drawing(2, 10, 30)], 0.0)
    assert fleet.next_look() == pytest.approx(0.2)
    fleet.go_on()
    # Steps of 0.02 s: the second round of both has begun, at 0.64 s.
    seen = fleet.stop(0.7)
    assert seen.at == pytest.approx(64 * 0.02)
    assert [each.group for each in seen.whole] == [1]
    (left,) = seen.left
    assert (left.group, left.left, left.context, left.is_started) == (0, 36, 94, True)
    assert held(fleet) == [[], [], []]


def test_in_turns_all_is_answered_in_one_call() -> None:
    fleet = Fleet(RATES, 1, "bounds", 32)
    fleet.add([drawing(0, 10), drawing(1, 100)], 0.0)
    seen = fleet.go_on()
    assert {each.group for each in seen.whole} == {0, 1}
    assert seen.at == pytest.approx(10 * 0.03 + 90 * 0.02)


def test_in_a_partial_rollout_all_wait_for_the_slowest_of_each_round() -> None:
    fleet = Fleet(RATES, 2, "rounds", 32)
    fleet.add([drawing(0, 64), drawing(1, 64), drawing(2, 64)], 0.0)
    assert held(fleet) == [[0], [1, 2]]
    seen = fleet.go_on()
    assert (seen.at, len(seen.whole)) == (pytest.approx(64 * 0.03), 3)
    assert fleet.busy_seconds == pytest.approx(64 * (0.02 + 0.03))


def test_in_a_partial_rollout_what_goes_on_is_dealt_in_turn() -> None:
    fleet = Fleet(RATES, 2, "rounds", 32)
    old = [drawing(group, 9, is_started=True) for group in (0, 1)]
    fleet.add([*old, *(drawing(group, 9) for group in (2, 3))], 0.0)
    assert held(fleet) == [[0, 2], [1, 3]]


def test_in_a_partial_rollout_a_replica_has_twice_the_rows_and_gets_more_behind_a_round() -> None:
    fleet = Fleet(Rates(engine_step=0.01, at_a_time=1), 2, "rounds", 8)
    fleet.add([drawing(group, 8) for group in range(8)], 0.0)
    assert ([each.count for each in fleet.replicas], len(fleet.waiting)) == ([2, 2], 4)
    assert len(fleet.go_on().whole) == 2
    assert ([each.count for each in fleet.replicas], len(fleet.waiting)) == ([2, 2], 2)
    assert len(fleet.stop(0.0).left) == 6
