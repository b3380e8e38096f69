"""A response of several turns: which tokens the policy wrote, and what its environment gave.

Shapes: N tokens of the response, of policy and environment.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from mindrl.batch.prompts import PlacedImage

MessageRole = Literal["tool", "user"]
"""Role of a message of the environment."""
ConversationEnding = Literal["done", "turns", "turn_tokens", "tokens", "pictures", "failed"]
"""Why a conversation ended: its environment ended it, its last turn was the last allowed one, a
turn or the conversation reached its limit of tokens, an answer had more pictures than were left,
or its environment failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A turn of the policy, and the answer of the environment."""

    start: int
    """Index of its first token in the response."""
    end: int
    """Index after its last token."""
    calls: int = 0
    """Number of tool calls in it."""
    reward: float = 0.0
    """The environment's reward for it."""
    answer: str = ""
    """SHA-256 of the answer, for checks of a replayed environment; empty without one."""
    messages: tuple[tuple[MessageRole, str], ...] = ()
    """Role and text of each message of the answer; empty if its tokens in the response suffice."""
    role: MessageRole | None = None
    """Role of the answer's messages; None without any."""
    seconds: float = field(default=0.0, compare=False)
    """Time that the environment took to answer it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """A place in a response where its prompt was rendered anew."""

    start: int
    """Index of the first token after that prompt."""
    prompt_ids: tuple[int, ...]
    """Token ids of everything before it, as the chat template renders it."""


class ResponseSegment(NamedTuple):
    """A part of a response that is one sequence with its prompt."""

    prompt_ids: tuple[int, ...]
    start: int
    end: int
    """Index after its last token."""
    images: tuple[PlacedImage, ...] = ()
    """Pictures of the sequence, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """Data of a response of several turns, without its tokens."""

    prompt_ids: tuple[int, ...] = ()
    """Token ids of its own prompt, with the text that the environment begins with. Empty until the
    environment has begun."""
    opening: str | None = None
    """Text that the environment begins with."""
    images: tuple[PlacedImage, ...] = ()
    """All pictures of its sequence, in order: those of its own prompt, then those of answers."""
    turns: tuple[Turn, ...] = ()
    """Ended turns of the policy."""
    restarts: tuple[Restart, ...] = ()
    """Places where the prompt was rendered anew, in order."""
    next_start: int = 0
    """Index of the first token of the next turn."""
    ending: ConversationEnding | None = None
    """None while the conversation is open."""
    is_parallel: bool = False
    """Whether an agent has called the policy while it answered another call."""

    def with_turn(self, turn: Turn, next_start: int, ending: ConversationEnding | None) -> Self:
        """Append a turn; the next one starts after the tokens of the environment."""
        turns = (*self.turns, turn)
        return replace(self, turns=turns, next_start=next_start, ending=ending)

    def segments(self, length: int) -> list[ResponseSegment]:
        """Return the segments of a response of `length` tokens, at least one."""
        assert not (self.images and self.restarts), "validated: a history with pictures is kept"
        starts = [Restart(start=0, prompt_ids=self.prompt_ids), *self.restarts]
        ends = [*(each.start for each in starts), length]
        return [
            ResponseSegment(each.prompt_ids, start, end, self.images)
            for each, (start, end) in zip(starts, pairwise(ends), strict=True)
        ]

    def written(self, length: int) -> Tensor:
        """Return the mask of the tokens that the policy sampled, bool [N], for a length N."""
        written_N = torch.zeros(length, dtype=torch.bool)
        for turn in self.turns:
            written_N[turn.start : turn.end] = True
        written_N[self.next_start :] = True
        return written_N

    def rewards(self, length: int) -> Tensor:
        """Return the reward of each turn at its last token, float32 [N], 0 elsewhere."""
        rewards_N = torch.zeros(length)
        for turn in self.turns:
            rewards_N[turn.end - 1] += turn.reward
        return rewards_N
