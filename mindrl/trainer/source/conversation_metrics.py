"""Metrics about the conversations of a step, and the limit of failed ones."""

from collections import Counter
from collections.abc import Mapping, Sequence

from mindrl.batch.conversations import ConversationEnding, Dialogue
from mindrl.errors import EnvironmentFailedError
from mindrl.observability.metrics import Metrics
from mindrl.trainer.source.group import OpenGroup

_ENDINGS: Mapping[ConversationEnding, str] = {
    "done": "turns/ended_done",
    "turns": "turns/ended_turns",
    "turn_tokens": "turns/ended_turn_tokens",
    "tokens": "turns/ended_tokens",
    "pictures": "turns/ended_pictures",
    "failed": "turns/ended_failed",
}
"""Metrics of the fraction of conversations with each ending."""


def conversations_of(groups: Sequence[OpenGroup]) -> list[tuple[Dialogue, int]]:
    """Return the conversations of groups, each with its number of tokens after the prompt."""
    found = [
        (each.conversation, len(each.tokens_N)) for group in groups for each in group.sequences
    ]
    return [(talk, length) for talk, length in found if talk is not None]


def conversation_metrics(groups: Sequence[OpenGroup]) -> Metrics:
    """Return the turns, tool calls and endings of the conversations of a step."""
    talks = conversations_of(groups)
    turns = [len(talk.turns) for talk, _ in talks]
    calls = sum(turn.calls for talk, _ in talks for turn in talk.turns)
    written = sum(int(talk.written(length).sum()) for talk, length in talks)
    endings = Counter(talk.ending for talk, _ in talks)
    seconds = [turn.seconds for talk, _ in talks for turn in talk.turns if turn.seconds]
    return {
        "turns/mean": sum(turns) / len(talks),
        "turns/max": float(max(turns)),
        "turns/calls_mean": calls / len(talks),
        "turns/environment_tokens": float(sum(length for _, length in talks) - written),
        "turns/environment_seconds_mean": sum(seconds) / max(1, len(seconds)),
        "turns/environment_seconds_max": max(seconds, default=0.0),
        **{name: endings[ending] / len(talks) for ending, name in _ENDINGS.items()},
    }


def check_failures(
    groups: Sequence[OpenGroup], reasons: Mapping[str, int], most: float
) -> list[str]:
    """Return a warning for each reason of failed conversations.

    Raises:
        EnvironmentFailedError: More than the fraction `most` of the conversations have failed.
    """
    talks = conversations_of(groups)
    failed = sum(talk.ending == "failed" for talk, _ in talks)
    lines = [f"{count} conversation(s) failed: {reason}" for reason, count in reasons.items()]
    if failed == len(talks) or failed > most * len(talks):
        raise EnvironmentFailedError(
            f"{failed} of {len(talks)} conversations of a step have failed; "
            f"environment_config.max_failed_fraction={most:g} allows {int(most * len(talks))}. "
            + "; ".join(lines)
        )
    return lines
