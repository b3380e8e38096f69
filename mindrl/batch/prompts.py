"""Prompts, as token ids, on their way to the rollout engine."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

ChatMessage = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRow:
    """What rewards take of a row of the data besides."""

    columns: Mapping[str, Any]
    """As they are in the file."""
    messages: tuple[ChatMessage, ...] = ()
    """What the chat template got, where a reward takes it."""
    is_chat: bool = False
    """The file has messages, and no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question with its right answer.

    Token ids are made once, by the model's own chat template, and are the only
    currency from here on: no text is tokenised again on the way to a loss.
    """

    uid: int
    """Row of the data file, counted from 0 and on over several; stable over a run."""
    token_ids: tuple[int, ...]
    """The rendered chat, generation prompt included."""
    text: str
    """The rendered chat as text, for people to read."""
    answer: str
    """The right answer, which the reward compares with."""
    source: str = ""
    """Its `data_source`, which chooses the reward; empty where the run has no such thing."""
    row: PromptRow | None = None
    """None where no reward takes any of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration(Prompt):
    """A conversation that is learned from: its token ids and its text are all of it."""

    targets: tuple[bool, ...]
    """Of each token, whether it is learned: those of answers, and what ends them. Never the
    first."""


def sample_numbers(uids: Iterable[int]) -> list[int]:
    """Count the responses to each prompt, from 0; `uids` says which each response answers.

    A step that goes over the end of an epoch may hold a prompt twice, which goes on counting.
    """
    drawn: Counter[int] = Counter()
    numbers = []
    for uid in uids:
        numbers.append(drawn[uid])
        drawn[uid] += 1
    return numbers


def sequence_seed(run_seed: int, *, step: int, uid: int, sample: int, drawn: int = 0) -> int:
    """Derive the seed of one sequence, 0 to 2 ** 63 - 1: the same however the run is laid out.

    `step` is the one that begins it. One that goes on with `drawn` tokens has another seed, for the
    engine begins its random numbers anew.
    """
    text = f"{run_seed}/{step}/{uid}/{sample}" + (f"/{drawn}" if drawn else "")
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1
