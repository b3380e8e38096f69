"""Work of the driver between turns: it grows with what has changed, not with all open responses."""

import random
import sys
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

from memory_roles import SAMPLING, MemoryRoles, config, decode, rewards
from recording_groups import DrawingGroup, dealing_actor

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Responses
from mindrl.data.order import PromptOrder
from mindrl.observability.timing import StageTimer
from mindrl.rollout.engine import Request
from mindrl.trainer.engine_rounds import Completed, FollowUp, RoundEnds
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.assignments import Assignments
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

TURNS = 3


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of the trainer's functions, each step of a generator included."""
    found, before = 0, sys.getprofile()

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and "/mindrl/trainer/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def calls_of_a_turn(talks: int) -> float:
    """Count the calls for each turn of conversations on two replicas, which begin together."""
    group = DrawingGroup()
    group.rows = talks
    actor = dealing_actor(group, train=1, rollout=2, rows=talks)
    rng, turn_of = random.Random(1), [0] * talks
    requests = [Request(token_ids=(5, 5), drawn=0, seed=rng.randint(1, 99)) for _ in turn_of]

    def next_turns(new: Mapping[int, Completed], left: int) -> list[FollowUp]:
        del left
        more = []
        for place in new:
            if turn_of[place] + 1 < TURNS:
                request = Request(token_ids=(5, 5), drawn=0, seed=rng.randint(1, 99))
                more.append(FollowUp(place, request))
                turn_of.append(turn_of[place] + 1)
        return more

    def is_enough(whole: Collection[int]) -> bool:
        return len(whole) == TURNS * talks

    rounds = RoundEnds(99)
    calls = calls_of(
        lambda: actor.generate_until(
            requests, SAMPLING, is_enough, rounds=rounds, next_turns=next_turns
        )
    )
    assert len(turn_of) == TURNS * talks
    return calls / len(turn_of)


def test_a_turn_costs_the_driver_the_same_whatever_the_number_of_conversations() -> None:
    """With more conversations more turns end in the same round, and share its calls."""
    assert calls_of_a_turn(120) <= calls_of_a_turn(20)


def pool_of(groups: int) -> GroupPool:
    """Make a pool with open groups of two responses."""
    roles = MemoryRoles()
    prompts = [Prompt(uid=uid, token_ids=(uid + 1, 9), text="", answer="") for uid in range(groups)]
    answering = Answering(
        prompts=prompts,
        order=PromptOrder(count=groups, seed=0, shuffle=False),
        workers=roles,  # type: ignore[arg-type]
        sampling=SAMPLING,
        rewards=RewardManager(rewards(roles), decode, StageTimer()),
        per_step=2,
    )
    pool = GroupPool(config(), answering)
    pool.start(1, groups)
    return pool


def calls_of_five_events(groups: int) -> int:
    """Count the calls while one response after the other is interrupted, and assigned again."""
    pool = pool_of(groups)
    assignments, ended = Assignments(pool), Responses.of([[5]], [[-1.0]], [False])
    first = assignments.assign([0, 1])
    assert sum(map(len, first.values())) == 2 * groups
    assert pool.complete_groups() == [False] * groups

    def work() -> None:
        for index in range(5):
            assignments.received(1, [index], ended, step=1)
            assert assignments.assign([0, 1]) == {1: [first[1][index]]}
            assert not any(pool.complete_groups())

    return calls_of(work)


def test_an_event_of_a_replica_costs_the_same_whatever_the_number_of_open_groups() -> None:
    assert calls_of_five_events(600) == calls_of_five_events(20)


def test_responses_of_a_replica_that_stopped_or_was_lost_go_to_the_others_oldest_first() -> None:
    assignments = Assignments(pool_of(4))
    first = assignments.assign([0, 1])
    assert first == {number: [*rows(number), *rows(2 + number)] for number in (0, 1)}
    assert assignments.assign([0, 1]) == {}
    assert assignments.lost(0) == 0
    assert assignments.assign([]) == {}
    assert assignments.assign([1]) == {1: first[0]}
    assignments.ended(1)
    assert assignments.assign([0]) == {0: sorted(first[0] + first[1])}


def rows(group: int) -> list[ResponseNumber]:
    return [ResponseNumber(group, response) for response in range(2)]
