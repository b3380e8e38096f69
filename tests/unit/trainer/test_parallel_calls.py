"""Calls of an agent at the same time as training sequences: each sampled token exactly once."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from mindrl.batch.conversations import Dialogue, Restart, Turn
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.parallel_calls import in_fixed_order

Ids = tuple[int, ...]


class Call(NamedTuple):
    """A call, and the answer that was sampled for it."""

    prompt: Ids
    drawn: Ids
    step: int = 5
    first: float = -1.0
    """Log-prob of the first token; each later one is 1 lower."""

    @property
    def logprobs(self) -> list[float]:
        return [self.first - at for at in range(len(self.drawn))]


class Segment(NamedTuple):
    """A training sequence; all but the prompt have a value for each token after it."""

    prompt: Ids
    tokens: Ids
    written: list[bool]
    logprobs: list[float]
    steps: list[int]


def segments_of(calls: Sequence[Call]) -> list[Segment]:
    """Return the training sequences of calls, each of which arrived with a prompt of its own."""
    sequence = OpenSequence.started(0)
    turns, restarts = list[Turn](), list[Restart]()
    for call in calls:
        start = len(sequence.tokens_N)
        restarts.append(Restart(start=start, prompt_ids=call.prompt))
        turns.append(Turn(start=start, end=start + len(call.drawn)))
        sampled = torch.tensor(call.drawn), torch.tensor(call.logprobs)
        sequence = sequence.with_more(*sampled, step=call.step, finished=True)
    talk = Dialogue(
        prompt_ids=calls[0].prompt,
        restarts=tuple(restarts[1:]),
        turns=tuple(turns),
        next_start=len(sequence.tokens_N),
        is_parallel=True,
    )
    found = in_fixed_order(replace(sequence, conversation=talk), str)
    assert found.conversation is not None
    length = len(found.tokens_N)
    written_N = found.conversation.written(length)
    return [
        Segment(
            prompt,
            (*found.tokens_N[start:end].tolist(),),
            written_N[start:end].tolist(),
            found.logprobs_N[start:end].tolist(),
            found.steps_N[start:end].tolist(),
        )
        for prompt, start, end, _ in found.conversation.segments(length)
    ]


def texts(calls: Sequence[Call]) -> list[tuple[Ids, Ids]]:
    return [(each.prompt, each.tokens) for each in segments_of(calls)]


def test_a_call_that_continues_is_in_the_segment_of_the_answer_before_it() -> None:
    calls = [Call((1, 2), (3, 4)), Call((1, 2, 3, 4, 9, 9), (5,), step=6, first=-0.5)]
    wanted = Segment(
        prompt=(1, 2),
        tokens=(3, 4, 9, 9, 5),
        written=[True, True, False, False, True],
        logprobs=[-1.0, -2.0, 0.0, 0.0, -0.5],
        steps=[5, 5, 5, 5, 6],
    )
    assert segments_of(calls) == segments_of(calls[::-1]) == [wanted]


def test_a_rewritten_history_begins_a_segment() -> None:
    found = texts([Call((1, 2), (3,)), Call((1, 7, 3, 9), (4,))])
    assert found == [((1, 2), (3,)), ((1, 7, 3, 9), (4,))]


def test_calls_with_one_prompt_are_separate_and_each_is_continued_by_its_own_tokens() -> None:
    calls = [Call((1,), (2,)), Call((1,), (3,)), Call((1, 3, 9), (4,)), Call((1, 2), (5,))]
    assert texts(calls) == [((1,), (2, 5)), ((1,), (3, 9, 4))]


def test_a_second_continuation_of_one_answer_is_a_segment_with_that_answer_in_its_prompt() -> None:
    found = texts([Call((1,), (2,)), Call((1, 2, 8), (3,)), Call((1, 2, 9), (4,))])
    assert found == [((1,), (2, 8, 3)), ((1, 2, 9), (4,))]


def test_the_longest_segment_is_continued() -> None:
    calls = [Call((1,), (2,)), Call((1, 2), (3,)), Call((1,), (2,)), Call((1, 2, 3), (4,))]
    # Calls with the shortest prompts come first; of segments of one length, the first goes on.
    assert texts(calls) == [((1,), (2, 3, 4)), ((1,), (2,))]


_IDS = st.lists(st.integers(0, 1), max_size=3).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> list[Call]:
    """Calls with few different ids, whose prompts often continue earlier calls."""
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 7))):
        earlier = draw(st.sampled_from([None, *calls]))
        before = () if earlier is None else (*earlier.prompt, *earlier.drawn)
        # Each log-prob stands for its token.
        drawn = (*draw(_IDS), draw(st.integers(0, 1)))
        calls.append(Call((*before, *draw(_IDS)), drawn, number, first=-100.0 * (number + 1)))
    return calls


@given(conversations())
def test_each_sampled_token_is_in_exactly_one_place_after_exactly_its_prompt(
    calls: list[Call],
) -> None:
    places = {}
    for segment in segments_of(calls):
        columns = (segment.written, segment.logprobs, segment.steps)
        assert {len(each) for each in columns} == {len(segment.tokens)}
        for at, logprob in enumerate(segment.logprobs):
            if segment.written[at]:
                assert logprob not in places
                places[logprob] = (segment, at)
    wanted = [(call, at) for call in calls for at in range(len(call.drawn))]
    assert len(places) == len(wanted)
    for call, at in wanted:
        segment, place = places[call.logprobs[at]]
        end = len(segment.prompt) + place
        whole = (*segment.prompt, *segment.tokens)
        assert whole[: end + 1] == (*call.prompt, *call.drawn[: at + 1])
        assert segment.steps[place] == call.step


@given(conversations(), st.randoms())
def test_a_call_begins_a_segment_only_if_none_can_be_continued(
    calls: list[Call], order: random.Random
) -> None:
    arrived = order.sample(calls, len(calls))
    assert texts(arrived) == texts(calls)
    calls.sort(key=lambda call: (len(call.prompt), call.prompt, call.drawn))
    for number, call in enumerate(calls[1:], 1):
        before, after = texts(calls[:number]), texts(calls[: number + 1])
        ends = [(*prompt, *tokens) for prompt, tokens in before]
        begins = not any(call.prompt[: len(each)] == each for each in ends)
        assert len(after) == len(before) + begins
