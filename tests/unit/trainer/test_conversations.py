"""Conversations of a pool with real environments and a real chat template; the policy is the test.

Whole runs: tests/e2e/test_tools_run.py.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_roles import SAMPLING, MemoryRoles, config, rewards

from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import SamplingConfig
from mindrl.data.order import PromptOrder
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.errors import EnvironmentFailedError
from mindrl.observability.timing import StageTimer
from mindrl.tiny.chat_model import build_tokenizer
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.group import PoolState
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

GAMES = Path(__file__).parents[1] / "environments/games.py"
TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
LONGEST = 90
MakePool = Callable[..., GroupPool]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[MakePool]:
    """Make pools of one prompt and two responses; each pool has its own host."""
    hosts: list[EnvironmentHost] = []
    messages = ({"role": "user", "content": "play"},)
    text = TOKENIZER.apply_chat_template([*messages], add_generation_prompt=True, tokenize=False)
    row = PromptRow(columns={"low": 5}, messages=messages, is_chat=True)
    prompt = Prompt(uid=0, token_ids=tuple(ids(text)), text=text, answer="", row=row)

    def make(**keys: object) -> GroupPool:
        section = EnvironmentConfig(environment=f"{GAMES}:Guess", **keys)  # type: ignore[arg-type]
        spec = EnvironmentSpec(
            environment=section.environment, arguments={"marker": str(tmp_path / "marker")}
        )
        limits = Limits(processes=8, start_seconds=60.0, call_seconds=60.0)
        hosts.append(EnvironmentHost(spec=spec, limits=limits))
        turns = EnvironmentTurns(
            owner="training",
            config=section,
            host=hosts[-1],
            template=TurnTemplate.of(TOKENIZER, [END]),
            decode=lambda each: TOKENIZER.decode(each, skip_special_tokens=True),
            longest=LONGEST,
            longest_prompt=64,
            warn=lambda _: None,
        )
        roles = MemoryRoles()
        answering = Answering(
            prompts=[prompt],
            order=PromptOrder(count=1, seed=0, shuffle=False),
            workers=roles,  # type: ignore[arg-type]
            sampling=replace(SAMPLING, section=SamplingConfig(temperature=1.0, max_tokens=LONGEST)),
            rewards=RewardManager(rewards(roles), TOKENIZER.decode, StageTimer()),
            per_step=1,
            turns=turns,
        )
        return GroupPool(config(), answering)

    yield make
    for host in hosts:
        host.close()


def listen(pool: GroupPool) -> None:
    while pool.hear(10.0):
        pass


def write(pool: GroupPool, response: int, text: str, *, ends: bool = True, step: int = 1) -> None:
    """Append a turn of the policy, and wait for the answer to it."""
    row = ResponseNumber(next(iter(pool.groups)), response)
    tokens = [*ids(text), *([END] if ends else [])]
    drawn = torch.tensor(tokens), torch.full((len(tokens),), -0.5)
    pool.extend(row, drawn, step=step, finished=ends)
    listen(pool)


def begun(pool: GroupPool) -> GroupPool:
    pool.start(1, 1)
    listen(pool)
    return pool


def number_of(pool: GroupPool, response: int) -> str:
    """Return the number that the environment of a response has named."""
    sequence = next(iter(pool.groups.values())).sequences[response]
    return TOKENIZER.decode(sequence.tokens_N).split("no")[-1].split("pe")[-1].split("<")[0].strip()


def test_what_the_policy_wrote_is_masked_in_and_all_else_is_kept(make_pool: MakePool) -> None:
    pool = begun(make_pool())
    first = pool.request(pool.incomplete()[0])
    assert TOKENIZER.decode(first.token_ids).endswith(
        "playguess 5 to 99<|im_end|>\n<|im_start|>assistant\n"
    )
    for response in (0, 1):
        write(pool, response, "1")
        write(pool, response, number_of(pool, response))
    assert pool.complete_groups() == [True]
    found = pool.rollouts(1, pool.take([0]))
    for row in (0, 1):
        written = TOKENIZER.decode(found.response_tokens(row))
        whole = TOKENIZER.decode(found.tokens_BT[row][: found.lengths_B[row]])
        number = written.split("<|im_end|>")[1]
        assert written == f"1<|im_end|>{number}<|im_end|>"
        assert "assistant\n1<|im_end|>\n<|im_start|>user\nno" in whole
        assert whole.endswith(f"<|im_start|>assistant\n{number}<|im_end|>")
        assert (found.rollout_logprobs_BT[row] == -0.5).equal(found.response_mask_BT[row])
        rewards_BT = found.turn_rewards_BT
        assert rewards_BT is not None
        # A quarter for each turn so far, at the last token of the turn.
        places = found.response_mask_BT[row].nonzero()[:, 0]
        assert rewards_BT[row].nonzero()[:, 0].tolist() == [int(places[1]), int(places[-1])]
        assert rewards_BT[row].sum() == 0.25 + 0.5


def test_a_further_turn_is_requested_with_all_tokens_and_what_is_left_of_its_limit(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(max_turn_tokens=12))
    write(pool, 0, "1")
    row, _ = pool.incomplete()
    sequence = pool.groups[row.group].sequences[0]
    request = pool.request(row)
    assert [*request.token_ids[-len(sequence.tokens_N) :]] == sequence.tokens_N.tolist()
    # The engine takes it off the longest response.
    assert LONGEST - request.drawn == 12
    write(pool, 0, "12345", ends=False)
    assert LONGEST - pool.request(row).drawn == 7


@pytest.mark.parametrize(
    ("keys", "turns", "ending", "finished"),
    [
        ({"max_turns": 2}, ("1", "2"), "turns", True),
        ({"max_turn_tokens": 4}, ("1", "2222"), "turn_tokens", False),
        ({}, ("1" * 30, "2" * 30), "tokens", False),
        ({}, ("raise",), "failed", True),
    ],
)
def test_a_conversation_ends_for_a_reason(
    keys: dict[str, int],
    turns: tuple[str, ...],
    ending: str,
    finished: bool,
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(**keys))
    for text in turns:
        write(pool, 0, text, ends=text != "2222")
    sequence = next(iter(pool.groups.values())).sequences[0]
    assert sequence.conversation is not None
    assert sequence.conversation.ending == ending
    assert sequence.finished == finished
    assert [row.response for row in pool.incomplete()] == [1]


def test_a_failed_conversation_is_not_trained_on_and_too_many_end_the_run(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(max_failed_fraction=0.5))
    write(pool, 0, "raise")
    write(pool, 1, "1")
    write(pool, 1, number_of(pool, 1))
    groups = pool.take([0])
    assert pool.rollouts(1, groups).lengths_B.shape == (1,)
    assert pool.turns is not None
    metrics = pool.turns.check(groups)
    assert (metrics["turns/ended_failed"], metrics["turns/ended_done"]) == (0.5, 0.5)
    pool.turns.config = replace(pool.turns.config, max_failed_fraction=0.4)
    with pytest.raises(EnvironmentFailedError, match=r"1 of 2 conversations .* allows 0"):
        pool.turns.check(groups)


def test_a_pool_of_a_checkpoint_goes_on_with_the_same_environments(make_pool: MakePool) -> None:
    pool, later = begun(make_pool()), make_pool()
    for response in (0, 1):
        write(pool, response, "1")
    write(pool, 0, "2", ends=False)
    state = PoolState(next_prompt=1, groups=tuple(pool.groups.values()))
    later.load(PoolState.of_json(json.loads(json.dumps(state.to_json()))))
    listen(later)
    for each in (pool, later):
        write(each, 0, "3", step=2)
        write(each, 1, "4", step=2)
    ours, theirs = (
        [sequence for group in each.groups.values() for sequence in group.sequences]
        for each in (pool, later)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens_N.tolist() == other.tokens_N.tolist()
        assert one.steps_N.tolist() == other.steps_N.tolist()
        assert one.conversation == other.conversation
