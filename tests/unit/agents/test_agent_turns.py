"""Agents' calls as turns of a response; the policy is the test, the agents and HTTP are real.

Whole runs: tests/e2e/test_tools_run.py.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scripted_engine import CHAT, END, OWNER, TOKENIZER, letters, made_routes

from mindrl.agents.host import AgentHost
from mindrl.agents.runner_process import AgentSpec
from mindrl.batch.conversations import Dialogue
from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.environment import EnvironmentConfig
from mindrl.data.turn_template import TurnTemplate
from mindrl.trainer.source.agent_turns import AgentTurns
from mindrl.trainer.source.group import OpenSequence

AGENTS = Path(__file__).with_name("agents.py")
ROW = (3, 1)
MakeTurns = Callable[..., AgentTurns]


@pytest.fixture
def make_turns() -> Iterator[MakeTurns]:
    hosts: list[AgentHost] = []

    def make(agent: str, *, longest: int = 400, **keys: int) -> AgentTurns:
        hosts.append(AgentHost(AgentSpec(agent=f"{AGENTS}:{agent}"), made_routes()))
        return AgentTurns(
            owner=OWNER,
            config=EnvironmentConfig(agent=agent, **keys),  # type: ignore[arg-type]
            template=TurnTemplate.of(TOKENIZER, [END], is_kept=False),
            decode=CHAT.decode,
            longest=longest,
            longest_prompt=64,
            warn=lambda _: None,
            host=hosts[-1],
        )

    yield make
    for host in hosts:
        host.close()


def prompt(question: str = "why?") -> Prompt:
    row = PromptRow(columns={"question": question}, messages=(), is_chat=True)
    return Prompt(uid=0, token_ids=(), text="", answer="", row=row)


def begun() -> OpenSequence:
    return OpenSequence.started(0, Dialogue())


def heard(turns: AgentTurns, sequence: OpenSequence, asked: Prompt) -> OpenSequence:
    """Take what the agent does next: one call, or its end."""
    while ROW in turns.waiting:
        for row, answer in turns.answers(10.0):
            assert row == ROW
            sequence = turns.answered(row, sequence, asked, answer)
    return sequence


def written(
    turns: AgentTurns, sequence: OpenSequence, text: str, asked: Prompt, *, step: int = 1
) -> OpenSequence:
    """Write a turn of the policy, and take what the agent does then."""
    tokens_N = torch.tensor([*letters(text), END])
    more = sequence.with_more(
        tokens_N, torch.full((len(tokens_N),), -0.5), step=step, finished=True
    )
    return heard(turns, turns.drawn(ROW, more, asked), asked)


def held(turns: AgentTurns, sequence: OpenSequence, *texts: str) -> OpenSequence:
    """Hold a conversation from its begin."""
    asked = prompt()
    turns.begin(ROW, sequence, asked, 7)
    sequence = heard(turns, sequence, asked)
    for text in texts:
        sequence = written(turns, sequence, text, asked)
    return sequence


def shown(sequence: OpenSequence) -> list[tuple[str, str]]:
    """Return the prompt and the text of the policy of each segment."""
    talk, length = sequence.conversation, len(sequence.tokens_N)
    assert talk is not None
    mask_N = talk.written(length)
    return [
        (
            TOKENIZER.decode([*segment.prompt_ids]),
            TOKENIZER.decode(
                sequence.tokens_N[segment.start : segment.end][mask_N[segment.start : segment.end]]
            ),
        )
        for segment in talk.segments(length)
    ]


def test_calls_that_continue_a_conversation_are_turns_of_one_sequence(
    make_turns: MakeTurns,
) -> None:
    sequence = held(make_turns("plain"), begun(), "ab", "cde")
    assert shown(sequence) == [
        (
            "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n",
            "ab<|im_end|>cde<|im_end|>",
        )
    ]
    whole = TOKENIZER.decode(sequence.tokens_N)
    assert whole.startswith(
        "ab<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\ncde"
    )
    talk = sequence.conversation
    assert talk is not None
    assert (talk.ending, sequence.finished) == ("done", True)
    # The agent's reward is the number of letters of the last answer.
    assert [turn.reward for turn in talk.turns] == [0.0, 3.0]
    assert (sequence.logprobs_N == -0.5).equal(talk.written(len(sequence.tokens_N)))


def test_answers_whose_client_has_gone_leave_no_trace_in_a_conversation(
    make_turns: MakeTurns,
) -> None:
    straight = held(make_turns("plain"), begun(), "ab", "cde")
    halfway = held(make_turns("impatient"), begun(), "lost", "ab")
    asked, later = prompt(), make_turns("impatient")
    later.begin(ROW, halfway, asked, 7)
    resumed = heard(later, halfway, asked)
    for text in ("gone", "cde"):
        resumed = written(later, resumed, text, asked)
    for other in (held(make_turns("impatient"), begun(), "lost", "ab", "gone", "cde"), resumed):
        assert other.tokens_N.equal(straight.tokens_N)
        assert other.logprobs_N.equal(straight.logprobs_N)
        assert other.conversation == straight.conversation


def test_calls_at_the_same_time_are_answered_one_by_one_in_segments_of_their_own(
    make_turns: MakeTurns,
) -> None:
    sequence = held(make_turns("asked_at_once"), begun(), "a", "b", "c", "d")
    segments = shown(sequence)
    assert sorted(text for _, text in segments) == [f"{each}<|im_end|>" for each in "abcd"]
    begins = [text.split("\n")[1].removesuffix("<|im_end|>") for text, _ in segments]
    assert sorted(begins) == [f"why? {number}" for number in range(4)]
    talk = sequence.conversation
    assert talk is not None
    assert (talk.ending, talk.turns[-1].reward) == ("done", 4.0)


def told(
    make_turns: MakeTurns, later: int, sequence: OpenSequence | None = None, most: int = 9
) -> OpenSequence:
    """Hold the conversation of an agent with two; an answer follows from its seed alone."""
    turns, asked = make_turns("two_in_two_turns"), prompt()
    assert asked.row is not None
    asked = replace(asked, row=replace(asked.row, columns={"later": later}))
    sequence = begun() if sequence is None else sequence
    turns.begin(ROW, sequence, asked, 7)
    sequence = heard(turns, sequence, asked)
    while len(sequence.conversation.turns) < most and sequence.conversation.ending is None:
        # So that the other conversation has called too, as while an engine samples.
        time.sleep(0.5)
        sequence = written(turns, sequence, f"{turns.place(sequence) % 1000:03}", asked)
    return sequence


def test_calls_at_the_same_time_are_trained_on_alike_in_whichever_order_they_arrive(
    make_turns: MakeTurns,
) -> None:
    straight = told(make_turns, 0)
    (first, said), (second, _) = shown(straight)
    # Both turns of a conversation are one sequence.
    assert [each.count("why? ") for each in (first, second)] == [1, 1]
    assert {said.count("<|im_end|>")} == {2}
    talk = straight.conversation
    assert talk is not None
    assert (talk.ending, talk.is_parallel, len(talk.turns)) == ("done", True, 4)
    assert [turn.reward for turn in talk.turns] == [0.0, 0.0, 0.0, 6.0]
    for other in (told(make_turns, 1), told(make_turns, 1, told(make_turns, 0, most=2))):
        assert other.tokens_N.equal(straight.tokens_N)
        assert other.logprobs_N.equal(straight.logprobs_N)
        assert other.conversation == talk


def test_a_resumed_agent_gets_its_answers_again_and_goes_on_where_it_was(
    make_turns: MakeTurns,
) -> None:
    straight = held(make_turns("plain"), begun(), "ab", "cde")
    halfway = held(make_turns("plain"), begun(), "ab")
    partly = halfway.with_more(
        torch.tensor(letters("c")), torch.tensor([-0.5]), step=1, finished=False
    )
    for known, rest in ((halfway, "cde"), (partly, "de")):
        later, asked = make_turns("plain"), prompt()
        later.begin(ROW, known, asked, 7)
        sequence = written(later, heard(later, known, asked), rest, asked)
        assert sequence.tokens_N.equal(straight.tokens_N)
        assert sequence.conversation == straight.conversation


def test_a_resumed_agent_that_asks_otherwise_has_failed(make_turns: MakeTurns) -> None:
    halfway = held(make_turns("plain"), begun(), "ab")
    turns, asked = make_turns("plain"), prompt("who?")
    turns.begin(ROW, halfway, asked, 7)
    sequence = heard(turns, halfway, asked)
    assert sequence.conversation is not None
    assert sequence.conversation.ending == "failed"
    assert [*turns.failures] == ["an agent made another call when the run was resumed"]


@pytest.mark.parametrize(
    ("limits", "ending", "finished"),
    [({"max_turns": 1}, "turns", True), ({"longest": 13}, "tokens", False)],
)
def test_a_conversation_ends_at_a_limit(
    limits: dict[str, int], ending: str, finished: bool, make_turns: MakeTurns
) -> None:
    sequence = held(make_turns("plain", **limits), begun(), "ab")
    assert sequence.conversation is not None
    assert (sequence.conversation.ending, sequence.finished) == (ending, finished)
    assert len(sequence.conversation.turns) == 1


def test_an_agent_that_raises_has_failed(make_turns: MakeTurns) -> None:
    turns, asked = make_turns("seeded"), prompt()
    row = replace(asked.row, columns={"do": "raise"}) if asked.row else None
    asked = replace(asked, row=row)
    turns.begin(ROW, begun(), asked, 7)
    sequence = heard(turns, begun(), asked)
    assert sequence.conversation is not None
    assert sequence.conversation.ending == "failed"
    assert "bad luck" in next(iter(turns.failures))
