"""Calls that an agent made at the same time, in an order that does not depend on their arrival.

Shapes: N tokens of a response.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mindrl.batch.conversations import Dialogue, ResponseSegment, Restart, Turn
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.turns import dialogue_of


class _Call(NamedTuple):
    """A call of an agent, and the policy's answer."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    columns: tuple[Tensor, Tensor]
    """Log-prob and step of each token of the answer, [N]."""
    turn: Turn


@dataclass(kw_only=True)
class _Segment:
    """A sequence with the answers of one or more calls."""

    prompt_ids: tuple[int, ...]
    whole: tuple[int, ...]
    """Token ids of the prompt and all that follows."""
    columns: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    turns: list[tuple[Turn, tuple[int, ...]]] = field(default_factory=list)
    """Turns, with positions counted from the end of the prompt, and the tokens before each turn."""

    def add(self, call: _Call) -> None:
        """Continue with a call; its prompt must begin with all tokens so far."""
        given, drawn = call.prompt_ids[len(self.whole) :], len(call.answer_ids)
        if given:
            # As in other conversations, they get the step of the token before.
            last_N = self.columns[-1][1][-1:].expand(len(given))
            self.columns.append((torch.zeros(len(given)), last_N))
        self.columns.append(call.columns)
        start = len(call.prompt_ids) - len(self.prompt_ids)
        turn = replace(call.turn, start=start, end=start + drawn)
        self.turns.append((turn, given if self.turns else self.prompt_ids))
        self.whole = (*call.prompt_ids, *call.answer_ids)


def prompt_before(sequence: OpenSequence, start: int) -> tuple[int, ...]:
    """Return the prompt of the call with the answer that starts at an index of a response."""
    segment = _segment_at(sequence, start)
    return (*segment.prompt_ids, *sequence.tokens_N[segment.start : start].tolist())


def prompt_length_before(sequence: OpenSequence, start: int) -> int:
    """Return the number of tokens of `prompt_before`."""
    segment = _segment_at(sequence, start)
    return len(segment.prompt_ids) + start - segment.start


def _segment_at(sequence: OpenSequence, start: int) -> ResponseSegment:
    """Return the segment with an index of a response."""
    segments = dialogue_of(sequence).segments(len(sequence.tokens_N))
    return next(each for each in reversed(segments) if each.start <= start)


def in_fixed_order(sequence: OpenSequence, decode: Callable[[list[int]], str]) -> OpenSequence:
    """Return a finished conversation with its turns in the order of their prompts.

    Shorter prompts come first. A turn continues the longest sequence that its prompt begins
    with, or begins a new one.
    """
    found: list[_Segment] = []
    for call in sorted(_calls(sequence), key=lambda call: (len(call.prompt_ids), call[:2])):
        known = [each for each in found if call.prompt_ids[: len(each.whole)] == each.whole]
        if known:
            max(known, key=lambda each: len(each.whole)).add(call)
            continue
        found.append(_Segment(prompt_ids=call.prompt_ids, whole=call.prompt_ids))
        found[-1].add(call)
    return _joined(sequence, found, decode)


def _calls(sequence: OpenSequence) -> Iterator[_Call]:
    for turn in dialogue_of(sequence).turns:
        chosen = slice(turn.start, turn.end)
        yield _Call(
            prompt_ids=prompt_before(sequence, turn.start),
            answer_ids=tuple(sequence.tokens_N[chosen].tolist()),
            columns=(sequence.logprobs_N[chosen], sequence.steps_N[chosen]),
            turn=turn,
        )


def _joined(
    sequence: OpenSequence, segments: list[_Segment], decode: Callable[[list[int]], str]
) -> OpenSequence:
    """Return the response that consists of segments, one after the other."""
    restarts, turns, given, length = list[Restart](), list[Turn](), list[tuple[int, ...]](), 0
    tokens: list[int] = []
    for each in segments:
        restarts.append(Restart(start=length, prompt_ids=each.prompt_ids))
        for turn, before in each.turns:
            turns.append(replace(turn, start=length + turn.start, end=length + turn.end))
            given.append(before)
        tokens += each.whole[len(each.prompt_ids) :]
        length = len(tokens)
    columns = [column for each in segments for column in each.columns]
    # Shown to people: the agent's text after each turn.
    turns[:-1] = [
        replace(turn, role="user", messages=(("user", decode([*ids])),))
        for turn, ids in zip(turns[:-1], given[1:], strict=True)
    ]
    turns[-1] = replace(turns[-1], role=None, messages=())
    conversation: Dialogue = replace(
        dialogue_of(sequence),
        prompt_ids=segments[0].prompt_ids,
        restarts=tuple(restarts[1:]),
        turns=tuple(turns),
        next_start=length,
    )
    return replace(
        sequence,
        tokens_N=torch.tensor(tokens, dtype=torch.int64),
        logprobs_N=torch.cat([logprobs_N for logprobs_N, _ in columns]),
        steps_N=torch.cat([steps_N for _, steps_N in columns]),
        conversation=conversation,
    )
