"""Recorded calls of a conversation, and the training sequences made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One answer of the policy."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Sampled tokens."""
    logprobs: tuple[float, ...]
    """Log-prob of each sampled token, in nats."""
    step: int
    """Training step of the weights that sampled the tokens."""
    ending: str
    """`stop`, `length`, or another cause of its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A sequence with the answers of one or more calls.

    The last four have a value for each token after the prompt.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Tokens of the policy, and of the agent between its answers."""
    written: tuple[bool, ...]
    """Whether the policy sampled a token."""
    logprobs: tuple[float, ...]
    """0 for tokens of the agent."""
    steps: tuple[int, ...]
    """Tokens of the agent have the step of the previous answer."""

    def with_call(self, call: Call) -> "Segment":
        """Return the segment continued by a call, whose prompt begins with the whole segment."""
        given = call.prompt_ids[len(self.prompt_ids) + len(self.token_ids) :]
        between, drawn = len(given), len(call.token_ids)
        last = self.steps[-1] if self.steps else call.step
        return Segment(
            prompt_ids=self.prompt_ids,
            token_ids=(*self.token_ids, *given, *call.token_ids),
            written=(*self.written, *(False,) * between, *(True,) * drawn),
            logprobs=(*self.logprobs, *(0.0,) * between, *call.logprobs),
            steps=(*self.steps, *(last,) * between, *(call.step,) * drawn),
        )


def training_trace(name: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Return the calls of a session as JSON values in OpenEnv's form `TrainingTrace`, version 1.

    Turns are named by the session and their number. The loss mask spans prompt and answer.
    """
    turns = [
        {
            "node_id": f"{name}-{number}",
            "prompt_token_ids": [*call.prompt_ids],
            "completion_token_ids": [*call.token_ids],
            "per_token_logps": [*call.logprobs],
            "loss_mask": [0] * len(call.prompt_ids) + [1] * len(call.token_ids),
            "metadata": {"step": call.step, "finish_reason": call.ending},
        }
        for number, call in enumerate(calls)
        if call.token_ids
    ]
    return {"schema_version": 1, "turns": turns}


def segments_of(calls: Sequence[Call]) -> tuple[Segment, ...]:
    """Return the segments of a conversation's calls, which are in the order of their numbers.

    A call whose prompt begins with all tokens of an earlier segment continues the longest such
    segment; any other begins one. So each sampled token is trained on exactly once, even if an
    agent rewrites its history or continues an answer in two ways. A call without tokens is left
    out.
    """
    found: list[Segment] = []
    for call in calls:
        if not call.token_ids:
            continue
        length, place = max(
            ((_prefix_length(each, call), -at) for at, each in enumerate(found)), default=(0, 0)
        )
        if length:
            found[-place] = found[-place].with_call(call)
        else:
            begun = Segment(
                prompt_ids=call.prompt_ids, token_ids=(), written=(), logprobs=(), steps=()
            )
            found.append(begun.with_call(call))
    return tuple(found)


def _prefix_length(segment: Segment, call: Call) -> int:
    """Return the length of a segment if a call's prompt begins with it, else 0."""
    start = len(segment.prompt_ids)
    length = start + len(segment.token_ids)
    prompt = call.prompt_ids
    is_prefix = prompt[:start] == segment.prompt_ids and prompt[start:length] == segment.token_ids
    return length if is_prefix else 0
