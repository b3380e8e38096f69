"""Recorded calls of a conversation, and their form for other trainers."""

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
