"""Requests of all engines in rounds: order, places that become free, further turns."""

from collections.abc import Collection, Mapping

from recording_groups import SAMPLING, DrawingGroup, dealing_actor

from mindrl.rollout.engine import Request
from mindrl.trainer.engine_rounds import Completed, FollowUp


def test_replicas_go_on_in_rounds_until_there_is_enough_and_answers_come_back_in_order() -> None:
    """Requests whose seed is the length of their response, to two replicas of two ranks."""
    group = DrawingGroup()
    actor = dealing_actor(group, train=1, rollout=2)
    lengths, drawn = [9, 2, 7, 3, 1, 6, 8], [4, 0, 4, 0, 0, 0, 4]
    requests = [
        Request(token_ids=(5, place), drawn=started, seed=length)
        for place, (length, started) in enumerate(zip(lengths, drawn, strict=True))
    ]
    seen: list[list[int]] = []

    def is_enough(whole: Collection[int]) -> bool:
        seen.append(sorted(whole))
        return len(whole) >= 5

    found = actor.generate_until(requests, SAMPLING, is_enough, round_steps=2)

    first, *_ = group.given
    # 0, 2 and 6 go on: in turn. 1, 3, 4 and 5 begin: halves.
    dealt = [[request.token_ids[1] for request in first[rank][0]] for rank in range(4)]
    assert dealt == [[0, 6, 1, 3]] * 2 + [[2, 4, 5]] * 2
    # What is left of them is 5, 2, 3, 3, 1, 6 and 4 long.
    assert seen == [[1, 4], [1, 2, 3, 4, 6]]
    assert found.lengths_B.tolist() == [4, 2, 3, 3, 1, 4, 4]


def test_what_waits_goes_to_the_replica_that_has_least_left_to_do() -> None:
    """Two engines of one row, with two requests each at most; the first has the longest."""
    group = DrawingGroup()
    group.rows = 1
    actor = dealing_actor(group, train=1, rollout=2, rows=1)
    requests = [
        Request(token_ids=(5, place), drawn=0, seed=length)
        for place, length in enumerate([9, 1, 1, 1, 1, 1, 1, 9])
    ]
    seen: list[list[int]] = []

    def is_enough(whole: Collection[int]) -> bool:
        seen.append(sorted(whole))
        return len(whole) >= 5

    found = actor.generate_until(requests, SAMPLING, is_enough, round_steps=2)

    started, *rounds, _ = group.given
    assert [[each.token_ids[1] for each in started[rank][0]] for rank in (0, 2)] == [[0, 1], [4, 5]]
    # Of those that wait, 2, 3, 6 and 7, the second replica gets all: the first is still at 0.
    more = [[[each.token_ids[1] for each in args[rank][1]] for rank in (0, 2)] for args in rounds]
    assert more == [[[], []], [[], [2, 3]], [[], [6, 7]]]
    assert seen == [[4, 5], [2, 3, 4, 5], [2, 3, 4, 5, 6]]
    assert found.lengths_B.tolist() == [6, 0, 1, 1, 1, 1, 1, 1]


def test_a_turn_that_follows_goes_to_the_replica_that_has_its_prefix_as_soon_as_it_can() -> None:
    group = DrawingGroup()
    actor = dealing_actor(group, train=1, rollout=2)
    requests = [Request(token_ids=(5, place), drawn=0, seed=2 + place) for place in range(4)]
    seen: list[tuple[list[int], int]] = []

    def next_turns(new: Mapping[int, Completed], left: int) -> list[FollowUp]:
        seen.append((sorted(new), left))
        first = [FollowUp(0, Request(token_ids=(5, 9), drawn=0, seed=1))] if 0 in new else []
        # One that has no prefix goes to the replica with the fewest open requests.
        alone = [FollowUp(None, Request(token_ids=(5, 8), drawn=0, seed=1))] if 1 in new else []
        return [*first, *alone]

    found = actor.generate_until(
        requests, SAMPLING, lambda whole: len(whole) == 6, round_steps=9, next_turns=next_turns
    )

    # The rounds end with the first completed request of each engine, not after 9 steps.
    assert seen == [([0, 2], 2), ([1, 3, 4], 0), ([5], 0)]
    _, *rounds, _ = group.given
    more = [[[each.token_ids[1] for each in args[rank][1]] for rank in (0, 2)] for args in rounds]
    assert more == [[[], []], [[9], []], [[8], []]]
    assert found.lengths_B.tolist() == [2, 3, 4, 5, 1, 1]
