"""Dynamic sampling in every order of generation and training, with engines that answer from memory.

Whole runs: tests/e2e/test_filtered_runs.py.
"""

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_replicas import MemoryEngines
from test_partial_pool import LongTail
from test_replicas_ahead import PROMPTS, groups_of, length_of

from mindrl.batch.rollouts import Rollouts
from mindrl.errors import NoSignalError
from mindrl.rewards.scores import Scores
from mindrl.trainer.source.generated import GeneratedGroups

PARTIAL: dict[str, Any] = {"partial_rollout": True, "groups_in_flight": 3.0}
ONE_STEP_OFF: dict[str, Any] = {"step_order": "one_step_off"}
ASYNCHRONOUS: dict[str, Any] = {"step_order": "asynchronous"}


class Judging(LongTail):
    """Generates in rounds; the two responses to some prompts get different scores."""

    def __init__(self, differing: Iterable[int]) -> None:
        super().__init__()
        self.differing = {*differing}
        self.scored: list[int] = []

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        uids = [int(each) for each in answers]
        self.scored += uids[::2]
        scores = tuple(float(row % 2 or uid not in self.differing) for row, uid in enumerate(uids))
        return replace(
            super().score(responses, answers), rewards=scores, components={"exact": scores}
        )


@dataclass
class Steps:
    """What the steps of a run were given."""

    rollouts: list[Rollouts] = field(default_factory=list)
    uids: list[list[int]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    rewards: list[tuple[float, ...]] = field(default_factory=list)

    def ages(self) -> list[int]:
        """Return the maximum age of a token, by steps."""
        ages = [each.ages_BT for each in self.rollouts]
        return [0 if each is None else int(each.max()) for each in ages]


def build(roles: Judging, engines: MemoryEngines | None = None, **keys: Any) -> GeneratedGroups:
    """Build a source with a filter."""
    filtered = {"filter_groups_enable": True, "train_iters": 8}
    return groups_of(roles, engines or roles, **(filtered | keys))


def train(
    source: GeneratedGroups,
    steps: Sequence[int],
    learn: Callable[[int], None] = lambda _: None,
) -> Steps:
    """Run steps; each has two groups with both responses."""
    found = Steps()
    for step in steps:
        gathered = source.next(step, lambda: None)
        with gathered.rating as rewarded:
            found.rewards.append(rewarded().scores.rewards)
        learn(step)
        found.rollouts.append(gathered.rollouts)
        found.uids.append([prompt.uid for prompt in gathered.prompts])
        rows = [int(token) - 1 for token in gathered.rollouts.tokens_BT[:, 0]]
        assert rows == [uid for uid in found.uids[-1] for _ in range(2)]
        found.metrics.append({**gathered.metrics, **source.trained(step)})
    return found


def check(roles: Judging, source: GeneratedGroups, found: Steps, staleness: int) -> None:
    """Hold what each combination promises: a signal, nothing twice, nothing lost or too old."""
    trained = [*chain(*found.uids)]
    assert len(trained) == len({*trained}) == 2 * len(found.uids)
    assert {*trained} <= roles.differing
    for pair in chain(*[zip(each[::2], each[1::2], strict=True) for each in found.rewards]):
        assert pair[0] != pair[1]
    for each in found.rollouts:
        lengths_B = each.response_mask_BT.sum(dim=1).tolist()
        assert lengths_B == [length_of(int(uid) - 1) for uid in each.tokens_BT[:, 0]]
    assert max(found.ages()) <= staleness
    assert max(step.get("staleness/max", 0.0) for step in found.metrics) <= staleness
    # Every prompt that was started was scored once, or is still open.
    open_ = [group.prompt for group in source.pool.groups.values()]
    assert sorted([*roles.scored, *open_]) == list(range(source.pool.next_prompt))
    # In the order of the data each group with a signal was trained on.
    assert {uid for uid in roles.scored if uid in roles.differing} == {*trained}
    drawn = sum(step["groups/drawn"] for step in found.metrics)
    assert drawn == len(roles.scored)


THIRD = range(0, 60, 3)
TWO_OF_FIVE = [uid for uid in range(60) if uid % 5 in {0, 3}]


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_partial_rollout_trains_on_groups_with_a_signal_within_the_bound(staleness: int) -> None:
    roles = Judging(THIRD)
    source = build(roles, **PARTIAL, max_staleness=staleness)
    found = train(source, range(1, 9))
    check(roles, source, found, staleness)
    assert max(step["staleness/max"] for step in found.metrics) > 0
    assert max(found.ages()) > 0
    assert found.metrics[-1]["staleness/rounds"] > 0
    assert len(source.pool.groups) == 0


def test_partial_rollout_without_staleness_is_dynamic_sampling_in_turns() -> None:
    roles = Judging(TWO_OF_FIVE)
    partial = build(roles, **PARTIAL, max_staleness=0)
    found = train(partial, range(1, 5))
    assert found.uids == [[0, 3], [5, 8], [10, 13], [15, 18]]
    assert found.ages() == [0] * 4
    # What lies after the group that fills a step is sampled and scored again by the next one.
    assert partial.pool.next_prompt == 19
    again = sum(step["groups/answered_again"] for step in found.metrics)
    assert again == len(roles.scored) - 19 > 0


def test_one_step_off_replaces_groups_by_others_with_the_present_weights() -> None:
    """Groups that were started ahead are one step old, those that replace others are not."""
    engines, roles = MemoryEngines(2, length_of), Judging(TWO_OF_FIVE)
    source = build(roles, engines, **ONE_STEP_OFF)
    found = train(source, range(1, 9))
    check(roles, source, found, staleness=1)
    assert found.uids == [TWO_OF_FIVE[each : each + 2] for each in range(0, 16, 2)]
    old = [each for each in found.rollouts if each.ages_BT is not None]
    ages = [each.ages_BT[each.response_mask_BT] for each in old]
    assert {*torch.cat(ages).tolist()} == {0, 1}
    assert engines.versions == [*range(9)]
    # A response is requested once, from its first token on.
    assert [request.drawn for request in engines.asked] == [0] * len(engines.asked)
    assert len({request.seed for request in engines.asked}) == len(engines.asked)


def test_one_step_off_does_not_depend_on_the_speed_of_the_replicas() -> None:
    draw, found = random.Random(3), []
    for count, slowest in ((1, 0.0), (3, 0.002), (2, 0.001)):
        engines = MemoryEngines(count, length_of, lambda most=slowest: draw.random() * most)
        source = build(Judging(THIRD), engines, **ONE_STEP_OFF)
        found.append(train(source, range(1, 9)))
    first, *others = found
    for other in others:
        assert other.uids == first.uids
        for ours, theirs in zip(other.rollouts, first.rollouts, strict=True):
            assert torch.equal(ours.tokens_BT, theirs.tokens_BT)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_asynchronous_groups_without_a_signal_are_replaced_within_the_bound(staleness: int) -> None:
    engines, roles = MemoryEngines(2, length_of, lambda: 0.0005), Judging(THIRD)
    source = build(roles, engines, **ASYNCHRONOUS, max_staleness=staleness)
    found = train(source, range(1, 9))
    if staleness:
        check(roles, source, found, staleness)
    else:
        assert found.uids == [[each, each + 3] for each in range(0, 48, 6)]
    assert max(found.ages()) <= staleness


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    keys=st.sampled_from([PARTIAL, ONE_STEP_OFF, ASYNCHRONOUS]),
    staleness=st.integers(1, 3),
    share=st.sampled_from([0.2, 0.5, 0.9]),
    most=st.integers(1, 4),
    deaths=st.lists(st.integers(0, 30), max_size=3),
)
def test_whatever_has_a_signal_and_whichever_replica_dies_each_step_is_filled_in_time(
    *,
    seed: int,
    keys: dict[str, Any],
    staleness: int,
    share: float,
    most: int,
    deaths: list[int],
) -> None:
    """At the limit of a step groups without a signal fill it, the oldest first."""
    draw = random.Random(seed)
    roles = Judging(uid for uid in range(60) if draw.random() < share)
    engines = None
    if keys is not PARTIAL:
        engines = MemoryEngines(2, length_of, lambda: draw.random() * 5e-4, [*deaths])
    keys = keys | {"filter_groups_max_batches": most, "max_staleness": staleness, "train_iters": 6}
    source = build(roles, engines, **keys)
    bound = 1 if "one_step_off" in keys.values() else staleness
    found, learn = Steps(), lambda _: time.sleep(draw.random() * 1e-3)
    try:
        found = train(source, range(1, 7), learn)
    except NoSignalError:
        assert share < 0.5
        return
    trained = [*chain(*found.uids)]
    assert len(trained) == 12
    assert max(step.get("staleness/max", 0.0) for step in found.metrics) <= bound
    for each in found.metrics:
        assert each["groups/drawn"] < 2 * most + 2
    if source.pool.next_prompt <= len(PROMPTS):
        assert len({*trained}) == 12
        open_ = [group.prompt for group in source.pool.groups.values()]
        assert sorted([*roles.scored, *open_]) == list(range(source.pool.next_prompt))


@pytest.mark.parametrize("done", [1, 3, 6])
@pytest.mark.parametrize("keys", [PARTIAL, ONE_STEP_OFF, ASYNCHRONOUS])
def test_a_resumed_run_continues_to_the_same_bits(keys: dict[str, Any], done: int) -> None:
    """Asynchronous the state alone is compared: which groups are complete depends on speeds."""

    def built() -> GeneratedGroups:
        engines = None if keys is PARTIAL else MemoryEngines(2, length_of)
        return build(Judging(THIRD), engines, **keys, max_staleness=2)

    straight = built()
    before = train(straight, range(1, done + 1))
    state = json.loads(json.dumps(straight.state(done)))
    resumed = built()
    resumed.load_state(done, state)
    assert resumed.state(done) == state
    later = train(resumed, range(done + 1, 9))
    both = [*chain(*before.uids), *chain(*later.uids)]
    assert len({*both}) == len(both) == 16
    assert max(later.ages()) <= 2
    if keys is not ASYNCHRONOUS:
        rest = train(straight, range(done + 1, 9))
        assert rest.uids == later.uids
        for ours, theirs in zip(rest.rollouts, later.rollouts, strict=True):
            assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
            assert torch.equal(ours.rollout_logprobs_BT, theirs.rollout_logprobs_BT)
        assert resumed.state(8) == straight.state(8)


@pytest.mark.parametrize("keys", [PARTIAL, ONE_STEP_OFF, ASYNCHRONOUS])
def test_data_that_lost_its_signal_ends_a_resumed_run_where_the_straight_one_ends(
    keys: dict[str, Any],
) -> None:
    """After step 3 no group has a signal; at the limit of 10 prompts a step ends without."""

    def built(differing: Iterable[int]) -> GeneratedGroups:
        engines = None if keys is PARTIAL else MemoryEngines(2, lambda _: 2)
        limits = {"filter_groups_max_batches": 5, "train_iters": 30}
        return build(Judging(differing), engines, **keys, **limits)

    def last_step(source: GeneratedGroups) -> int:
        with pytest.raises(NoSignalError, match=r"last 6\d prompts are equal, .* the data has 60"):
            train(source, range(4, 30))
        return max(source.states)

    straight = built({0, 1})
    train(straight, [1, 2, 3])
    resumed = built(())
    resumed.load_state(3, json.loads(json.dumps(straight.state(3))))
    straight.pool.answering.rewards.sources.scorer.differing.clear()
    # Two prompts with a signal, then 60 without: 20 in steps 2 and 3, 10 in each further step.
    assert last_step(straight) == last_step(resumed) == 6
