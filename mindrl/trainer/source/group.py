"""Responses to a prompt that may be incomplete, and their form in a checkpoint.

Shapes: N tokens of a response.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mindrl.batch.conversations import Dialogue, ResponseSegment, Restart, Turn
from mindrl.batch.prompts import PlacedImage, Prompt
from mindrl.batch.rollouts import Turns


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenSequence:
    """A possibly incomplete response."""

    sample: int
    """Its number among the responses to its prompt in the step that started it."""
    tokens_N: Tensor
    """int64."""
    logprobs_N: Tensor
    """float32; log-probs under the weights that sampled each token."""
    steps_N: Tensor
    """int64; step of those weights."""
    finished: bool = False
    """Whether it ended by itself."""
    conversation: Dialogue | None = None
    """Turns of policy and environment. None without an environment."""

    @classmethod
    def started(cls, sample: int, conversation: Dialogue | None = None) -> Self:
        """Create a response without tokens."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            sample=sample,
            tokens_N=none,
            logprobs_N=torch.zeros(0),
            steps_N=none,
            conversation=conversation,
        )

    def is_complete(self, longest: int) -> bool:
        """Return whether it ended, by itself or at the maximum number of tokens.

        A conversation ends when its environment, or a limit, ends it.
        """
        if self.conversation is not None:
            return self.conversation.ending is not None
        return self.finished or len(self.tokens_N) == longest

    @property
    def has_failed(self) -> bool:
        """Whether it is a conversation with a failed environment."""
        return self.conversation is not None and self.conversation.ending == "failed"

    def with_more(self, tokens_N: Tensor, logprobs_N: Tensor, *, step: int, finished: bool) -> Self:
        """Append tokens sampled in a step."""
        return replace(
            self,
            tokens_N=torch.cat([self.tokens_N, tokens_N]),
            logprobs_N=torch.cat([self.logprobs_N, logprobs_N]),
            steps_N=torch.cat([self.steps_N, torch.full_like(tokens_N, step)]),
            finished=finished,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenGroup:
    """The possibly incomplete responses to a prompt."""

    prompt: int
    """Index of the prompt in the data."""
    start_step: int
    """Step that started it."""
    sequences: tuple[OpenSequence, ...]

    def incomplete(self, longest: int) -> list[int]:
        """Return the indices of incomplete responses."""
        each = enumerate(self.sequences)
        return [index for index, sequence in each if not sequence.is_complete(longest)]

    def with_more(
        self, index: int, sampled: tuple[Tensor, Tensor], *, step: int, finished: bool
    ) -> Self:
        """Append to a response the tokens and log-probs, [N] each, sampled in a step."""
        more = self.sequences[index].with_more(*sampled, step=step, finished=finished)
        return self.with_sequence(index, more)

    def with_sequence(self, index: int, sequence: OpenSequence) -> Self:
        """Replace a response."""
        sequences = [*self.sequences]
        sequences[index] = sequence
        return replace(self, sequences=tuple(sequences))


def segments_of(sequence: OpenSequence, prompt: Prompt) -> list[ResponseSegment]:
    """Return the segments of a response, given the prompt of its group."""
    length = len(sequence.tokens_N)
    if sequence.conversation is None or not sequence.conversation.prompt_ids:
        # Its environment has not begun: it has no prompt of its own.
        return [ResponseSegment(prompt.token_ids, 0, length, prompt.images)]
    return sequence.conversation.segments(length)


def sampled_prefixes(sequence: OpenSequence, prompt: Prompt) -> list[Tensor]:
    """Return the tokens of each segment of a response up to the last that the policy sampled.

    Empty for a segment without sampled tokens; `prompt` is that of the group.
    """
    written_N = torch.ones_like(sequence.tokens_N, dtype=torch.bool)
    if sequence.conversation is not None:
        written_N = sequence.conversation.written(len(sequence.tokens_N))
    found = []
    for each in segments_of(sequence, prompt):
        places = written_N[each.start : each.end].nonzero()
        if not len(places):
            found.append(torch.zeros(0, dtype=torch.int64))
            continue
        response_N = sequence.tokens_N[each.start : each.start + int(places[-1]) + 1]
        found.append(torch.cat([torch.tensor(each.prompt_ids), response_N]))
    return found


def turns_of(sequences: Sequence[OpenSequence], conversation_B: Tensor | None) -> Turns | None:
    """Return who wrote each token, and the rewards of turns; None without environments.

    `conversation_B` is the response of each segment; None if each is one segment.
    """
    known = [(each.conversation, len(each.tokens_N)) for each in sequences]
    talks = [(talk, length) for talk, length in known if talk is not None]
    if not talks:
        return None
    return Turns(
        written_N=torch.cat([talk.written(length) for talk, length in talks]),
        rewards_N=torch.cat([talk.rewards(length) for talk, length in talks]),
        conversation_B=conversation_B,
    )


_COLUMNS = {"tokens_N": np.int64, "logprobs_N": np.float32, "steps_N": np.int64}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PoolState:
    """State of the groups after a step."""

    next_prompt: int
    """Index of the next prompt in the order of the data."""
    groups: tuple[OpenGroup, ...] = ()
    """Open groups, the oldest first."""
    without_signal: int = 0
    """Number of consecutive prompts without a signal before it; only with a group filter."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, bitwise exact."""
        return {
            "next_prompt": self.next_prompt,
            "without_signal": self.without_signal,
            "groups": [
                {
                    "prompt": group.prompt,
                    "start_step": group.start_step,
                    "sequences": [_as_json(each) for each in group.sequences],
                }
                for group in self.groups
            ],
        }

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> Self:
        """Restore it."""
        groups = (
            OpenGroup(**{**group, "sequences": tuple(map(_of_json, group["sequences"]))})
            for group in state["groups"]
        )
        return cls(**{**state, "groups": tuple(groups)})


def _as_json(sequence: OpenSequence) -> dict[str, Any]:
    columns = {name: getattr(sequence, name).numpy().tobytes() for name in _COLUMNS}
    texts = {name: b64encode(content).decode() for name, content in columns.items()}
    known: dict[str, Any] = {"sample": sequence.sample, "finished": sequence.finished}
    if sequence.conversation is not None:
        known["conversation"] = asdict(sequence.conversation)
    return known | texts


def _of_json(values: Mapping[str, Any]) -> OpenSequence:
    columns: dict[str, Any] = {
        name: torch.from_numpy(np.frombuffer(b64decode(values[name]), kind).copy())
        for name, kind in _COLUMNS.items()
    }
    known = {name: value for name, value in values.items() if name not in _COLUMNS}
    if (turns := known.get("conversation")) is not None:
        known["conversation"] = dialogue_of_json(turns)
    return OpenSequence(**known, **columns)


def dialogue_of_json(values: Mapping[str, Any]) -> Dialogue:
    """Restore the turns of a response from `asdict` as JSON values."""
    turns, restarts = values["turns"], values["restarts"]
    messages = [tuple(map(tuple, turn["messages"])) for turn in turns]
    return Dialogue(
        **{**values}
        | {
            "prompt_ids": tuple(values["prompt_ids"]),
            "images": tuple(PlacedImage(*each) for each in values.get("images", ())),
            "turns": tuple(
                Turn(**turn | {"messages": each})
                for turn, each in zip(turns, messages, strict=True)
            ),
            "restarts": tuple(
                Restart(start=each["start"], prompt_ids=tuple(each["prompt_ids"]))
                for each in restarts
            ),
        }
    )
