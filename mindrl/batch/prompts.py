"""Prompts as token ids, as passed to the rollout engine."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from mindrl.observability.picture_names import picture_name

ChatMessage = dict[str, str]


class PlacedImage(NamedTuple):
    """A picture in a sequence; its pixels stay in a file."""

    number: int
    """Number of its content, 1 to 2 ** 63 - 1, by which workers find the file."""
    first: int
    """Position of its first token in the sequence."""
    tokens: int
    """Number of its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRow:
    """Fields of a data row that rewards use, except the answer."""

    columns: Mapping[str, Any]
    """Values as in the file."""
    messages: tuple[ChatMessage, ...] = ()
    """Messages given to the chat template, if a reward uses them."""
    is_chat: bool = False
    """Whether the file has messages instead of text."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that its conversation has; the prompt shows them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question with its reference answer.

    The model's chat template produces the token ids once; no later stage tokenises text again
    before the loss.
    """

    uid: int
    """Index of the row, counted from 0 over all data files; stable over a run."""
    token_ids: tuple[int, ...]
    """Rendered chat, including the generation prompt."""
    text: str
    """Rendered chat as text, for people to read."""
    answer: str
    """Reference answer for the reward."""
    source: str = ""
    """Its `data_source`, which selects the reward; empty without one."""
    row: PromptRow | None = None
    """None if no reward uses the row."""
    images: tuple[PlacedImage, ...] = ()
    """Its pictures, in order; the token ids have all tokens of each."""

    @property
    def picture_names(self) -> tuple[str, ...]:
        """Names of its pictures for people: their numbers in hexadecimal digits."""
        return tuple(picture_name(each.number) for each in self.images)

    @property
    def identity(self) -> str:
        """Text and pictures, which equal prompts have in common."""
        return " ".join([self.text, *(f"{each.number:x}" for each in self.images)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration(Prompt):
    """A conversation for supervised training; its token ids and text include the answers."""

    targets: tuple[bool, ...]
    """For each token, whether it is a target: tokens of answers and the tokens that end them. Never
    true for the first."""

    @property
    def last_target(self) -> int:
        """Position of the token that ends the last answer."""
        return len(self.targets) - 1 - self.targets[::-1].index(True)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledAnswer(Demonstration):
    """A conversation with a label: whether its last answer is desirable."""

    is_desirable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredAnswer(Demonstration):
    """A conversation with the reward that its last answer should get."""

    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedSteps(Demonstration):
    """A conversation with a label for each step of its last answer.

    Its targets are the last tokens of the steps.
    """

    labels: tuple[float, ...]
    """0 to 1 for each step; 1 for a right one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencePair(Prompt):
    """Two answers to a prompt; its token ids are those of the longer one, its text the chosen."""

    chosen: Demonstration
    rejected: Demonstration
    margin: float = 0.0
    """Least difference of their rewards."""


def sample_numbers(uids: Iterable[int]) -> list[int]:
    """Number the responses to each prompt from 0; `uids` are the prompts of the responses.

    A step that crosses the end of an epoch may contain a prompt twice; its numbers continue.
    """
    drawn: Counter[int] = Counter()
    numbers = []
    for uid in uids:
        numbers.append(drawn[uid])
        drawn[uid] += 1
    return numbers


def sequence_seed(run_seed: int, *, step: int, uid: int, sample: int, drawn: int = 0) -> int:
    """Return the seed of one sequence, 0 to 2 ** 63 - 1, independent of the run's layout.

    `step` is the one that starts the sequence. A sequence continued after `drawn` tokens has
    another seed, because the engine restarts its random numbers.
    """
    text = f"{run_seed}/{step}/{uid}/{sample}" + (f"/{drawn}" if drawn else "")
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1
