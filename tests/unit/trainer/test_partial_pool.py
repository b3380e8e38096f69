"""Steps that leave responses unfinished, on roles that draw from memory.

The real engine: tests/distributed/test_rollout.py; whole runs: tests/e2e/test_partial_rollout.py.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import MemoryRoles, asked_at, config, data, lines, rewards, run_log

from mindrl.batch.conversations import ConversationEnding, Dialogue
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Responses
from mindrl.batch.route_keys import content_key
from mindrl.errors import StopRequestedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engine_rounds import Completed, OnCompleted, RoundEnds
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.source.group import OpenGroup, OpenSequence, PoolState

LONGEST = 12
KEYS = {
    "partial_rollout": True,
    "no_shuffle": True,
    "global_batch_size": 2,
    "rollout_round_steps": 2,
    "seq_length": 16,
}
PROMPTS = [
    Prompt(uid=uid, token_ids=(uid + 1, 9), text=f"prompt {uid}", answer=str(uid))
    for uid in range(40)
]


def length_of(uid: int) -> int:
    """Most responses have 2 tokens, those to every fifth prompt from 2 on 12."""
    return LONGEST if uid % 5 == 2 else 2


class LongTail(MemoryRoles):
    """Draws the token 20 + its place; a response ends where its prompt says."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Sequence[Request]] = []
        self.rounds: list[int] = []

    def generate_until(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        is_enough: Callable[[Collection[int]], bool],
        *,
        rounds: RoundEnds,
        on_completed: OnCompleted | None = None,
    ) -> Responses:
        assert sampling.samples_per_prompt == 2
        self.requests.append(requests)
        lengths = [length_of(request.token_ids[0] - 1) - request.drawn for request in requests]
        steps, complete = rounds.steps, set[int]()
        while True:
            new = {row for row, length in enumerate(lengths) if length <= steps} - complete
            complete |= new
            if on_completed is not None:
                each = list(self._responses(requests, lengths).each())
                on_completed({row: Completed(*each[row], finished=True) for row in new})
            if is_enough(complete):
                break
            steps += rounds.steps
        self.rounds.append(steps // rounds.steps)
        drawn = [min(length, steps) for length in lengths]
        found = self._responses(requests, drawn)
        return replace(found, finished_B=torch.tensor([length <= steps for length in lengths]))

    @staticmethod
    def _responses(requests: Sequence[Request], lengths: Sequence[int]) -> Responses:
        return Responses.of(
            token_ids=[
                [20 + request.drawn + place for place in range(length)]
                for request, length in zip(requests, lengths, strict=True)
            ],
            logprobs=[[-1.0] * length for length in lengths],
            finished=[True] * len(lengths),
        )

    def trained(self) -> list[int]:
        return [int(each.tokens_BT[0, 0]) - 1 for each in self.minibatches]


def build(
    root: Path, roles: MemoryRoles, train: Sequence[Prompt] = PROMPTS, **changes: Any
) -> PolicyTrainer:
    chosen = config(**(KEYS | changes))
    section = chosen.generate_config
    longer = type(section.sampling_config)(max_tokens=LONGEST)
    chosen = type(chosen)(
        **{**vars(chosen), "generate_config": type(section)(sampling_config=longer)}
    )
    log = run_log(root, chosen.megatron_training.train_iters)
    of_run = data(train=train)
    return PolicyTrainer(chosen, of_run, roles, rewards(roles), log, max_logprob_gap=0.1)


def sampled(
    *steps_and_endings: tuple[int, ConversationEnding | None],
) -> tuple[OpenSequence, ...]:
    """Return conversations of two tokens, each with the step that sampled them and its ending."""
    drawn = torch.tensor([20, 21]), torch.zeros(2)
    return tuple(
        OpenSequence.started(sample, Dialogue(prompt_ids=(1, 9), ending=ending)).with_more(
            *drawn, step=step, finished=True
        )
        for sample, (step, ending) in enumerate(steps_and_endings)
    )


@pytest.mark.parametrize("open_too", [True, False])
def test_tokens_of_failed_conversations_are_no_probe(open_too: bool, tmp_path: Path) -> None:
    """Of an open response there are tokens of step 1 alone, in step 2."""
    sequences = sampled((1, None), (2, "failed"))
    group = OpenGroup(prompt=0, start_step=1, sequences=sequences[not open_too :])
    pool = build(tmp_path, LongTail()).source.pool
    pool.load(PoolState(next_prompt=1, groups=(group,)))
    assert pool.sampled_in(2, 8) is None
    found = pool.sampled_in(1, 8)
    assert (found is not None) == open_too
    assert found is None or len(found) == 1


@pytest.mark.parametrize(("newer", "probes"), [("failed", True), ("done", False)])
def test_tokens_of_failed_conversations_do_not_count_as_trained(
    newer: ConversationEnding, probes: bool, tmp_path: Path
) -> None:
    """Step 2 trains on tokens of step 1, and on those of a newer conversation if it is done."""
    trained = OpenGroup(prompt=0, start_step=1, sequences=sampled((1, "done"), (2, newer)))
    left = OpenGroup(prompt=1, start_step=2, sequences=sampled((2, None), (2, None)))
    source = build(tmp_path, LongTail()).source
    source.pool.load(PoolState(next_prompt=2, groups=(left,)))
    found = source.generation.end(2, [trained], lambda: None)
    assert (found.probed is not None) == probes
    ages = [found.metrics[f"staleness/{name}"] for name in ("mean", "stale_tokens")]
    assert ages == ([1.0, 1.0] if probes else [0.5, 0.5])


def test_a_step_ends_with_the_first_that_are_whole_and_the_others_go_on(tmp_path: Path) -> None:
    roles = LongTail()
    build(tmp_path, roles, train_iters=4).run()
    # Of 0 to 3 two are whole after a round; 2 goes on beside 3, 4 and 5, and is waited for.
    assert roles.trained() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert roles.rounds == [1, 5, 1, 5]
    first, second, *_ = roles.requests
    assert [request.drawn for request in first] == [0] * 8
    # Both responses to 2 go on with 2 tokens; 3 is whole already, and 4 and 5 begin.
    assert [(request.token_ids[0] - 1, request.drawn) for request in second] == [
        *[(2, 2)] * 2,
        *[(4, 0)] * 2,
        *[(5, 0)] * 2,
    ]
    assert second[0].token_ids == (3, 9, 20, 21)
    assert len({request.seed for requests in (first, second) for request in requests}) == 14
    responses = [each.tokens_BT[0, 2:].tolist() for each in roles.minibatches[2:4]]
    assert responses == [list(range(20, 32)), [20, 21]]
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["staleness/max"] for step in steps] == [0, 1, 1, 1]
    assert [step["staleness/rounds"] for step in steps] == roles.rounds
    assert steps[0]["staleness/open_tokens"] == 8
    # In the second step 2 and 3: 4 of 24 tokens of 2, and all 4 of 3, are of the step before.
    assert steps[1]["staleness/stale_tokens"] == pytest.approx(8 / 28)
    assert steps[1]["staleness/mean"] == pytest.approx(8 / 28)
    assert steps[-1]["staleness/open_groups"] == 0


class KeepingRoutes(LongTail):
    """Notes whose routes the workers keep after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.retained: list[list[int]] = []

    def retain_routes(self, keys: list[int]) -> None:
        self.retained.append(keys)


def test_workers_keep_the_routes_of_responses_that_are_open_after_this_step_or_the_one_before(
    tmp_path: Path,
) -> None:
    roles = KeepingRoutes()
    trainer = build(tmp_path, roles, train_iters=2)
    trainer.source.pool.has_routes = True  # type: ignore[attr-defined]
    trainer.run()
    # Tokens are sampled up to the end of what a request begins with.
    for requests in roles.requests:
        assert [each.sampled for each in requests] == [
            len(each.token_ids) if each.drawn else 0 for each in requests
        ]
    # The first step leaves 2 and 3, with two equal responses each. The second, which is the last,
    # leaves none, but could be abandoned.
    keys = sorted(content_key([uid + 1, 9, 20, 21]) for uid in (2, 3))
    assert roles.retained == [keys, keys]


def test_a_last_step_that_finds_all_whole_asks_for_nothing(tmp_path: Path) -> None:
    roles = LongTail()
    build(tmp_path, roles, train_iters=2, train=PROMPTS[:2] * 2).run()
    assert roles.trained() == [0, 1, 0, 1]
    assert len(roles.requests) == 1
    first, last = lines(tmp_path / "metrics.jsonl")
    assert (first["staleness/rounds"], last["staleness/rounds"]) == (1, 0)
    assert last["staleness/mean"] == 1
    assert "logprob_gap/mean" not in last


def test_only_tokens_of_the_present_weights_have_a_gap_the_others_a_drift(tmp_path: Path) -> None:
    roles = LongTail()
    roles.gap = 0.05
    build(tmp_path, roles, train_iters=2, epochs=2).run()
    first, second = lines(tmp_path / "metrics.jsonl")
    assert "drift/mean" not in first
    assert second["drift/mean"] == pytest.approx(0.05)
    assert second["logprob_gap/mean"] == pytest.approx(0.05)


def test_a_step_of_old_tokens_alone_is_judged_by_those_that_it_drew_for_later_ones(
    tmp_path: Path,
) -> None:
    """Of four groups that are whole at once two wait: from step 2 on all tokens are a step old."""
    roles = LongTail()
    roles.gap = 0.05
    short = [prompt for prompt in PROMPTS if length_of(prompt.uid) == 2]
    build(tmp_path, roles, train_iters=4, train=short).run()
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["staleness/stale_tokens"] for step in steps] == [0, 1, 1, 1]
    # Two groups of two responses of two tokens; the last step draws nothing.
    assert [step.get("logprob_gap/probe_tokens") for step in steps] == [None, 8, 8, None]
    assert [step["logprob_gap/mean"] for step in steps[:3]] == pytest.approx([0.05] * 3)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_each_prompt_is_trained_on_once_and_none_is_older_than_asked(
    staleness: int, tmp_path: Path
) -> None:
    roles = LongTail()
    keys = {"train_iters": 12, "groups_in_flight": 4.0, "max_staleness": staleness}
    build(tmp_path, roles, **keys).run()
    assert sorted(roles.trained()) == list(range(24))
    oldest = [step["staleness/max"] for step in lines(tmp_path / "metrics.jsonl")]
    assert max(oldest) == staleness
    if staleness == 0:
        assert roles.trained() == list(range(24))


@pytest.mark.parametrize("moment", range(10))
def test_a_run_that_is_stopped_anywhere_goes_on_with_what_was_under_way(
    moment: int, tmp_path: Path
) -> None:
    keys = {"train_iters": 4, "save_interval": 1, "groups_in_flight": 3.0, "max_staleness": 2}
    straight, stopped, resumed = LongTail(), LongTail(), LongTail()
    build(tmp_path / "straight", straight, **keys).run()
    trainer = build(tmp_path / "stopped", stopped, **keys)
    with pytest.raises(StopRequestedError):
        trainer.run(asked_at(moment))
    done, state = trainer.run_log.summary.steps, json.loads(json.dumps(trainer.state()))
    again = build(tmp_path / "resumed", resumed, **keys)
    again.resume(done, state)
    again.run()
    assert resumed.requests == straight.requests[done:]
    learned = [*stopped.minibatches[: 2 * done], *resumed.minibatches]
    for ours, theirs in zip(learned, straight.minibatches, strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
