"""Interface of a chat engine. Imports no torch."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mindrl.config.generate import Truncation


@dataclass(frozen=True, kw_only=True)
class ChatEngineSettings:
    """Settings of a chat engine."""

    folder: str
    """Folder of the model and its tokenizer."""
    dtype: str
    """`auto` uses the folder's dtype."""
    longest: int
    """Maximum tokens of a prompt and its answer together."""
    tensor_parallel_size: int
    kv_cache_bytes: int | None
    """None lets the engine use nine tenths of the device in total."""
    trust_remote_code: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class AnswerSampling:
    """How answers are sampled; None uses the model's generation_config.json."""

    samples: int = 1
    temperature: float | None = None
    """0 uses the most likely token each time."""
    truncation: Truncation | None = None
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Strings that end an answer, and are part of it."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of an answer, available as soon as it is text."""

    answer: int
    """Index of the answer, from 0."""
    text: str
    is_cut: bool = False
    """Whether it is the last part of an answer that was cut."""


class ChatEngine(Protocol):
    """Answers one prompt at a time."""

    def answers(self, token_ids: Sequence[int], sampling: AnswerSampling) -> Generator[Piece]:
        """Answer a prompt; closing the generator aborts it."""

    def close(self) -> None:
        """Shut down the engine."""
