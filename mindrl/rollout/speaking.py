"""What is asked of an engine that answers a person. Imports no torch."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class SpeakerSettings:
    """The engine of a speaker."""

    folder: str
    """Of the model, whose tokenizer lies beside it."""
    dtype: str
    """`auto` is that of the folder."""
    longest: int
    """Tokens of a prompt and its answer together."""
    tensor_parallel_size: int
    kv_cache_bytes: int | None
    """None takes nine tenths of the device, with all else."""
    trust_remote_code: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class AnswerDraw:
    """How answers are drawn; None is as the model's generation_config.json says."""

    samples: int = 1
    temperature: float | None = None
    """0 takes the most likely token each time."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Texts that end an answer, and stay in it."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of an answer, as soon as it is text."""

    answer: int
    """Which one, from 0."""
    text: str
    is_cut: bool = False
    """It is the last, and the answer has no end."""


class Speaker(Protocol):
    """Answers one prompt at a time."""

    def answers(self, token_ids: Sequence[int], asked: AnswerDraw) -> Generator[Piece]:
        """Answer a prompt; whoever takes no more pieces ends it."""

    def close(self) -> None:
        """End the engine."""
