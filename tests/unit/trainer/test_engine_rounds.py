"""Requests of all engines in rounds: order, places that become free, further turns."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from recording_groups import SAMPLING, DrawingGroup, dealing_actor

from mindrl.rollout.engine import Request
from mindrl.trainer.engine_rounds import Completed, FollowUp, RoundEnds


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

    found = actor.generate_until(requests, SAMPLING, is_enough, rounds=RoundEnds(2))

    first, *_ = group.given
    # 0, 2 and 6 go on, and 1, 3, 4 and 5 begin: both in turn.
    dealt = [[request.token_ids[1] for request in first[rank][0]] for rank in range(4)]
    assert dealt == [[0, 6, 1, 4]] * 2 + [[2, 3, 5]] * 2
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

    found = actor.generate_until(requests, SAMPLING, is_enough, rounds=RoundEnds(2))

    started, _ = group.given
    assert [[each.token_ids[1] for each in started[rank][0]] for rank in (0, 2)] == [[0, 2], [1, 3]]
    # Of those that wait, 4 to 7, the second replica gets all: the first is still at 0.
    assert group.sent == [(0, []), (2, []), (0, []), (2, [4, 5]), (0, []), (2, [6, 7])]
    assert seen == [[1, 3], [1, 3, 4, 5], [1, 3, 4, 5, 6]]
    assert found.lengths_B.tolist() == [6, 1, 0, 1, 1, 1, 1, 1]


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
        requests,
        SAMPLING,
        lambda whole: len(whole) == 6,
        rounds=RoundEnds(9),
        next_turns=next_turns,
    )

    # The rounds end with the first completed request of each engine, not after 9 steps.
    assert seen == [([0, 1], 2), ([4, 5], 2), ([2, 3], 0)]
    assert group.sent == [(0, []), (2, []), (0, [9]), (2, [8]), (0, []), (2, [])]
    assert found.lengths_B.tolist() == [2, 3, 4, 5, 1, 1]


@dataclass
class _Running:
    """A call of one replica; what it returns is computed when it is waited for."""

    group: "SeparateGroup"
    first: int
    arguments: Sequence[tuple[Any, ...]]

    def wait(self) -> list[Any]:
        self.group.events.append(("ends", self.first))
        found: list[Any] = DrawingGroup.round_of(self.group, self.first, self.arguments).wait()
        return found


class SeparateGroup(DrawingGroup):
    """Two replicas of two ranks; `choose` decides which of their running rounds end first."""

    def __init__(self, choose: Callable[[list[int]], list[int]]) -> None:
        super().__init__()
        self.choose = choose
        self.events: list[tuple[str, int]] = []

    def round_of(self, first: int, arguments: Sequence[tuple[Any, ...]]) -> _Running:
        self.events.append(("begins", first))
        return _Running(self, first, arguments)

    def answered(self, calls: Sequence[_Running], seconds: float) -> list[int]:
        assert 0 < seconds < 0.1
        chosen = self.choose([each.first for each in calls])
        return [at for at, each in enumerate(calls) if each.first in chosen]


def test_a_replica_goes_on_with_its_turns_while_another_works_on_a_long_one() -> None:
    """The first replica ends no round before the second has nothing more to do."""
    group = SeparateGroup(lambda firsts: [2] if 2 in firsts else [0])
    actor = dealing_actor(group, train=1, rollout=2)
    requests = [
        Request(token_ids=(5, place), drawn=0, seed=length) for place, length in enumerate([9, 2])
    ]
    seen: list[tuple[list[int], int]] = []

    def next_turns(new: Mapping[int, Completed], left: int) -> list[FollowUp]:
        seen.append((sorted(new), left))
        last = max(new, default=0)
        if last in (1, 2):
            return [FollowUp(last, Request(token_ids=(5, last + 1), drawn=0, seed=3))]
        return []

    found = actor.generate_until(
        requests,
        SAMPLING,
        lambda whole: len(whole) == 4,
        rounds=RoundEnds(9, together=False),
        next_turns=next_turns,
    )

    assert seen == [([1], 1), ([2], 1), ([3], 1), ([0], 0)]
    second = [("ends", 2), ("begins", 2)]
    assert group.events == [
        ("begins", 0),
        ("begins", 2),
        *second,
        *second,
        ("ends", 2),
        ("ends", 0),
    ]
    # Each turn is sent once, to the replica that has its prefix.
    assert group.sent == [(0, []), (2, []), (2, [2]), (2, [3])]
    assert found.lengths_B.tolist() == [9, 2, 3, 3]


@pytest.mark.parametrize("enough", [4, 30])
def test_rounds_that_end_in_any_order_leave_each_turn_answered_once(enough: int) -> None:
    """Ten conversations of three turns; also if the rollout ends with some open or not sent."""
    for seed in range(40):
        rng = random.Random(seed)

        def some(firsts: list[int], rng: random.Random = rng) -> list[int]:
            return [first for first in firsts if rng.random() < 0.4]

        group = SeparateGroup(some)
        actor = dealing_actor(group, train=1, rollout=2, rows=3)
        group.rows = 3
        lengths = [rng.randint(1, 9) for _ in range(30)]
        requests = [Request(token_ids=(5, talk), drawn=0, seed=lengths[talk]) for talk in range(10)]
        talks, follow = [*range(10)], list[FollowUp]()

        def next_turns(
            new: Mapping[int, Completed],
            left: int,
            rng: random.Random = rng,
            talks: list[int] = talks,
            follow: list[FollowUp] = follow,
            lengths: list[int] = lengths,
        ) -> list[FollowUp]:
            for place, each in new.items():
                talk = talks[place]
                assert len(each.tokens_N) == lengths[talk]
                if talk + 10 < 30:
                    request = Request(token_ids=(5, talk + 10), drawn=0, seed=lengths[talk + 10])
                    follow.append(FollowUp(place, request))
            # The environments of some answer later, unless the engines wait for them.
            count = rng.randint(0, len(follow)) if left else len(follow)
            now = [follow.pop(0) for _ in range(count)]
            talks += [each.request.token_ids[1] for each in now]
            return now

        found = actor.generate_until(
            requests,
            SAMPLING,
            lambda whole, enough=enough: len(whole) >= enough,
            rounds=RoundEnds(4, together=False),
            next_turns=next_turns,
        )

        drawn = found.lengths_B.tolist()
        # The turns that were to follow when there was enough were not begun.
        expected = [lengths[talk] for talk in talks[: len(drawn)]]
        assert sum(map(int.__eq__, drawn, expected)) >= enough
        assert all(map(int.__le__, drawn, expected))
        sent = [talk for _, each in group.sent for talk in each]
        assert len({*sent}) == len(sent)
        if enough == 30:
            assert sorted(talks) == [*range(30)]
            assert drawn == expected


def test_a_prompt_stays_on_one_replica_and_the_longest_of_an_earlier_epoch_begin_first() -> None:
    """Four prompts of two samples; a turn that follows counts for the request before it."""
    group = DrawingGroup()
    actor = dealing_actor(group, train=1, rollout=2)
    lengths = [1, 1, 6, 6, 1, 1, 2, 2]
    requests = [
        Request(token_ids=(5, row // 2), drawn=0, seed=length) for row, length in enumerate(lengths)
    ]

    def next_turns(new: Mapping[int, Completed], left: int) -> list[FollowUp]:
        del left
        turn = Request(token_ids=(5, 9), drawn=1, seed=9)
        return [FollowUp(place, turn) for place in (0, 1) if place in new]

    def dealt() -> list[list[int]]:
        group.given.clear()
        actor.generate_until(
            requests,
            SAMPLING,
            lambda whole: len(whole) == 10,
            rounds=RoundEnds(9),
            next_turns=next_turns,
        )
        return [[each.token_ids[1] for each in group.given[0][rank][0]] for rank in (0, 2)]

    assert dealt() == [[0, 0, 2, 2], [1, 1, 3, 3]]
    # Tokens of a sample, with those of turns that follow: 9, 6, 1 and 2.
    assert dealt() == [[0, 0], [1, 1, 3, 3, 2, 2]]
    assert [*actor.prompt_shares.tokens.values()] == [9.0, 6.0, 1.0, 2.0]
    actor.prompt_shares.learn_requests(requests, [1, 1, 6, 6, 7, 7, 2, 2])
    assert dealt() == [[2, 2, 0, 0], [1, 1, 3, 3]]
