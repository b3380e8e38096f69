"""Steps whose responses are drawn while others learn, on replicas that draw from memory.

Whole runs with real engines: tests/e2e/test_ahead_runs.py.
"""

import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_replicas import MemoryEngines, MemoryReplica
from memory_roles import SAMPLING, MemoryRoles, config, decode, rewards

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.route_keys import with_content_keys
from mindrl.config.role import RouterReplay
from mindrl.data.order import prompt_order
from mindrl.data.prompts import PromptSet
from mindrl.errors import ClusterError
from mindrl.observability.timing import StageTimer
from mindrl.rollout.engine import Request
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.choice import source_of
from mindrl.trainer.source.generated import GeneratedGroups
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.replica_thread import (
    Advanced,
    Lost,
    Probed,
    ReplicaThread,
    RoundEnd,
)
from mindrl.trainer.weight_probe import WeightProbe

LONGEST = 12
PROBE_CALLS = 3
"""Calls of a replica by which it answers the probe of its weights: begin, advance, take."""
PROMPTS = [
    Prompt(uid=uid, token_ids=(uid + 1, 9), text=f"prompt {uid}", answer=str(uid))
    for uid in range(60)
]


def length_of(uid: int) -> int:
    """Most responses have 2 tokens, those to every fifth prompt from 2 on 12."""
    return LONGEST if uid % 5 == 2 else 2


@dataclass
class Trained:
    """What the steps of a run were given."""

    steps: list[Rollouts] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    probed: list[Rollouts | None] = field(default_factory=list)

    def uids(self) -> list[list[int]]:
        """Of the prompts, by steps; both responses to each are there."""
        found = []
        for rollouts in self.steps:
            rows = [int(uid) - 1 for uid in rollouts.tokens_BT[:, 0]]
            assert rows[::2] == rows[1::2]
            found.append(rows[::2])
        return found

    def ages(self) -> list[list[int]]:
        """Of the response tokens, by steps: by the versions that the tokens tell of."""
        found = []
        for step, rollouts in enumerate(self.steps, start=1):
            mask_BT = rollouts.response_mask_BT
            ages_N = step - 1 - (rollouts.tokens_BT[mask_BT] - 100)
            if rollouts.ages_BT is not None:
                assert torch.equal(rollouts.ages_BT[mask_BT], ages_N)
            found.append(ages_N.tolist())
        return found


def groups_of(
    roles: MemoryRoles,
    engines: MemoryEngines | MemoryRoles,
    replay: RouterReplay = "none",
    **keys: Any,
) -> GeneratedGroups:
    """Build a source for steps of two prompts, with rounds of two engine steps."""
    asked = {
        "no_shuffle": True,
        "global_batch_size": 2,
        "rollout_round_steps": 2,
        "seq_length": 16,
    }
    chosen = config(**(asked | keys))
    section, actor = chosen.generate_config, replace(chosen.actor_config, router_replay=replay)
    longer = type(section)(sampling_config=type(section.sampling_config)(max_tokens=LONGEST))
    changes = {"generate_config": longer, "actor_config": actor}
    chosen = type(chosen)(**{**vars(chosen), **changes})
    roles.engines = engines
    of_run = [PromptSet(path="none", prompts=tuple(PROMPTS), dropped=0)]
    answering = Answering(
        prompts=PROMPTS,
        order=prompt_order(chosen, of_run),
        workers=roles,
        sampling=replace(SAMPLING, section=chosen.generate_config.sampling_config),
        rewards=RewardManager(rewards(roles), decode, StageTimer()),
        per_step=2,
    )
    source = source_of(chosen, answering, lambda _: None)
    assert isinstance(source, GeneratedGroups)
    return source


def ahead(engines: MemoryEngines, *, is_asynchronous: bool = True, **keys: Any) -> GeneratedGroups:
    """Build a source that generates ahead."""
    order = "asynchronous" if is_asynchronous else "one_step_off"
    return groups_of(MemoryRoles(), engines, step_order=order, **keys)


def train(
    groups: GeneratedGroups,
    steps: Sequence[int],
    learn: Callable[[int], None] = lambda _: None,
) -> Trained:
    trained = Trained()
    for step in steps:
        gathered = groups.next(step, lambda: None)
        learn(step)
        trained.steps.append(gathered.rollouts)
        trained.probed.append(gathered.probed)
        trained.metrics.append({**gathered.metrics, **groups.trained(step)})
    return trained


def check(groups: GeneratedGroups, trained: Trained, steps: int, staleness: int) -> None:
    """Hold what every order promises: nothing twice, nothing lost, nothing too old."""
    assert sorted(itertools.chain(*trained.uids())) == list(range(2 * steps))
    for rollouts in trained.steps:
        lengths_B = rollouts.response_mask_BT.sum(dim=1).tolist()
        assert lengths_B == [length_of(int(uid) - 1) for uid in rollouts.tokens_BT[:, 0]]
    assert all(0 <= age <= staleness for ages in trained.ages() for age in ages)
    assert not groups.pool.groups
    assert groups.pool.next_prompt == 2 * steps


def test_one_step_off_each_batch_is_drawn_whole_by_the_weights_before_the_last_update() -> None:
    engines = MemoryEngines(2, length_of)
    groups = ahead(engines, is_asynchronous=False, train_iters=5)
    trained = train(groups, range(1, 6))
    check(groups, trained, steps=5, staleness=1)
    assert trained.uids() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [set(ages) for ages in trained.ages()] == [{0}, {1}, {1}, {1}, {1}]
    assert engines.versions == [0, 1, 2, 3, 4, 5]
    # Each response was asked for once, from its first token on.
    assert [request.drawn for request in engines.asked] == [0] * 20
    assert [each["staleness/max"] for each in trained.metrics] == [0, 1, 1, 1, 1]
    assert [each["staleness/open_groups"] for each in trained.metrics] == [2, 2, 2, 2, 0]


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_asynchronous_responses_go_on_with_new_weights_and_none_gets_too_old(
    staleness: int,
) -> None:
    engines = MemoryEngines(2, length_of, lambda: 0.0005)
    groups = ahead(engines, train_iters=12, max_staleness=staleness)
    trained = train(groups, range(1, 13))
    check(groups, trained, steps=12, staleness=staleness)
    ages = set(itertools.chain(*trained.ages()))
    assert (max(ages) > 0) == (staleness > 0)
    if staleness == 0:
        assert trained.uids() == [[uid, uid + 1] for uid in range(0, 24, 2)]


class KeepingRoutes(MemoryRoles):
    """Keeps the routes of parts by key, each with the key of the part before."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[int, int | None] = {}

    def keep_routes(self, parcels: Sequence[dict[int, int | None]]) -> None:
        for parcel in parcels:
            self.routes |= parcel

    def retain_routes(self, keys: Sequence[int]) -> None:
        self.routes = {key: self.routes[key] for key in itertools.chain(*map(self.parts, keys))}

    def parts(self, key: int) -> list[int]:
        """Return the keys of a sequence's parts; KeyError if one is missing."""
        before = self.routes[key]
        return [key, *([] if before is None else self.parts(before))]


@pytest.mark.parametrize("order", ["one_step_off", "asynchronous"])
def test_the_routes_of_all_parts_arrive_before_the_step_that_trains_on_them(order: str) -> None:
    roles, engines = KeepingRoutes(), MemoryEngines(2, length_of, lambda: 0.0005)
    stale = {"max_staleness": 2} if order == "asynchronous" else {}
    groups = groups_of(roles, engines, "R3", step_order=order, train_iters=8, **stale)
    counts = []
    for step in range(1, 9):
        named = with_content_keys(groups.next(step, lambda: None).rollouts)
        assert named.route_keys_B is not None
        counts += [len(roles.parts(key)) for key in named.route_keys_B.tolist()]
        groups.trained(step)
        opened = [group for state in groups.states.values() for group in state.groups]
        assert len(roles.routes) <= sum(3 * len(group.sequences) for group in opened)
    assert (max(counts) > 1) == (order == "asynchronous")
    assert len(counts) == 32


def test_a_response_that_is_interrupted_goes_on_from_its_tokens_with_another_seed() -> None:
    """One replica, a step that learns at once: long responses are under way at each update."""
    engines = MemoryEngines(1, length_of, lambda: 0.002)
    trained = train(groups := ahead(engines, train_iters=8, max_staleness=2), range(1, 9))
    check(groups, trained, steps=8, staleness=2)
    assert any(request.drawn for request in engines.asked)
    for request in engines.asked:
        # Two tokens of the prompt, then its own: those of older weights first.
        versions = request.token_ids[2:]
        assert len(versions) == request.drawn
        assert list(versions) == sorted(versions)
    assert len({request.seed for request in engines.asked}) == len(engines.asked)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    staleness=st.integers(0, 4),
    is_asynchronous=st.booleans(),
    count=st.integers(1, 3),
    slowest=st.sampled_from([0.0, 0.001]),
    deaths=st.lists(st.integers(0, 30), max_size=4),
    lost=st.sets(st.integers(1, 8), max_size=2),
    late=st.integers(1, 3),
)
def test_whatever_the_timing_and_whoever_dies_each_group_is_trained_on_once_in_time(
    *,
    seed: int,
    staleness: int,
    is_asynchronous: bool,
    count: int,
    slowest: float,
    deaths: list[int],
    lost: set[int],
    late: int,
) -> None:
    draw = random.Random(seed)
    engines = MemoryEngines(
        count, length_of, lambda: draw.random() * slowest, [*deaths], {*lost}, late
    )
    steps = 6
    groups = ahead(
        engines, is_asynchronous=is_asynchronous, train_iters=steps, max_staleness=staleness
    )
    trained = train(groups, range(1, steps + 1), lambda _: time.sleep(draw.random() * slowest * 5))
    check(groups, trained, steps, staleness if is_asynchronous else 1)
    if not is_asynchronous or staleness == 0:
        assert trained.uids() == [[uid, uid + 1] for uid in range(0, 2 * steps, 2)]
    if not deaths and not lost:
        assert all(each["staleness/thrown_away_tokens"] == 0 for each in trained.metrics)
    if not is_asynchronous and not deaths and not lost:
        assert [set(ages) for ages in trained.ages()] == [{0}, *[{1}] * (steps - 1)]


def test_what_a_lost_replica_had_drawn_is_drawn_anew_by_the_other_with_the_same_seeds() -> None:
    """It dies in its third call behind its probe: of what it drew nothing came back."""
    engines = MemoryEngines(2, lambda _: 6, deaths=[PROBE_CALLS + 2])
    groups = ahead(engines, is_asynchronous=False, train_iters=1)
    trained = train(groups, [1])
    assert trained.uids() == [[0, 1]]
    seeds = [request.seed for request in engines.asked]
    # Each replica has a group; the two requests of the lost one are asked for once more.
    assert (len(seeds), len({*seeds})) == (6, 4)
    # Two requests that had taken a round of two steps.
    assert trained.metrics[0]["staleness/thrown_away_tokens"] == 4
    assert engines.replaced == 1
    assert 0 <= trained.metrics[0]["idle/training"] <= 1


def test_a_run_whose_replicas_die_again_and_again_ends_with_their_limit() -> None:
    engines = MemoryEngines(1, length_of, deaths=[1] * 9, most_replaced=3)
    with pytest.raises(ClusterError, match="too many"):
        train(ahead(engines, train_iters=2), [1, 2])


def test_what_nobody_expects_of_a_replica_ends_the_run() -> None:
    def broken(_: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(ahead(MemoryEngines(2, broken), train_iters=2), [1, 2])


@pytest.mark.parametrize("is_asynchronous", [True, False])
@pytest.mark.parametrize("done", [1, 3, 5])
def test_a_resumed_run_goes_on_with_the_tokens_that_were_under_way(
    done: int, *, is_asynchronous: bool
) -> None:
    def build() -> tuple[GeneratedGroups, MemoryEngines]:
        engines = MemoryEngines(2, length_of)
        keys = {"train_iters": 6, "max_staleness": 2}
        return ahead(engines, is_asynchronous=is_asynchronous, **keys), engines

    groups, _ = build()
    before = train(groups, range(1, done + 1))
    state = json.loads(json.dumps(groups.state(done)))
    under_way = tuple(groups.pool.groups.values())
    again, engines = build()
    again.load_state(done, state)
    behind = train(again, range(done + 1, 7))
    both = Trained(steps=[*before.steps, *behind.steps])
    check(again, both, steps=6, staleness=2 if is_asynchronous else 1)
    # What had been drawn was not drawn again: what is open goes on from its tokens.
    asked = {(request.token_ids[0] - 1, request.drawn) for request in engines.asked}
    open_ = {
        (group.prompt, len(each.tokens_N))
        for group in under_way
        for each in group.sequences
        if not each.finished
    }
    assert open_ <= asked
    assert engines.versions == [*range(done, 7)]


def test_one_step_off_a_resumed_run_is_the_straight_one() -> None:
    straight = ahead(MemoryEngines(2, length_of), is_asynchronous=False, train_iters=6)
    whole = train(straight, range(1, 7))
    first = ahead(MemoryEngines(1, length_of), is_asynchronous=False, train_iters=6)
    train(first, range(1, 4))
    again = ahead(MemoryEngines(3, length_of), is_asynchronous=False, train_iters=6)
    again.load_state(3, json.loads(json.dumps(first.state(3))))
    behind = train(again, range(4, 7))
    for ours, theirs in zip(behind.steps, whole.steps[3:], strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)


def test_the_rollout_goes_on_while_the_trainer_learns() -> None:
    """Rounds of 60 ms, steps that learn for 1 s: one step off hides the rounds in the learning."""
    engines = MemoryEngines(1, lambda _: LONGEST, lambda: 0.06)
    groups = ahead(engines, is_asynchronous=False, train_iters=4)
    trained = train(groups, range(1, 5), lambda _: time.sleep(1.0))
    first, *later = trained.metrics
    # Six rounds before the first step can learn; the others find theirs done.
    assert first["idle/training"] > 0.2
    assert all(each["idle/training"] < 0.2 for each in later)
    assert later[-1]["idle/rollout"] == 1.0


@pytest.mark.parametrize(("until", "first"), [(1, [0]), (2, [0, 1]), (None, [0, 1, 2])])
def test_a_round_of_a_replica_ends_with_complete_turns_if_others_follow_them(
    until: int | None, first: list[int]
) -> None:
    replica = MemoryReplica(0, lambda uid: 2 + uid, version=3)
    events = SimpleQueue[Advanced | Probed | Lost]()
    sampling = replace(SAMPLING, section=type(SAMPLING.section)(max_tokens=LONGEST))
    probe = WeightProbe(requests=(), sampling=sampling)
    end = RoundEnd(steps=LONGEST, until=until)
    thread = ReplicaThread(replica, sampling, end, events.put, probe=probe)
    thread.add([Request(token_ids=(uid + 1, 9), drawn=0, seed=1) for uid in range(3)])
    assert isinstance(events.get(timeout=60), Probed)
    found = events.get(timeout=60)
    thread.stop()
    assert isinstance(found, Advanced)
    assert (found.indices, found.has_ended) == (first, False)
    assert found.responses.lengths_B.tolist() == [2 + place for place in first]
