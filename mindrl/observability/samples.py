"""A log of prompts and responses for people to read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mindrl.observability.output_files import JsonLinesFile
from mindrl.observability.terminal import printable


@dataclass(frozen=True, kw_only=True)
class ConversationPiece:
    """Consecutive tokens of one author; the fields are the keys of its record.

    `calls`, `reward` and `seconds` are None in pieces of the environment, and in a turn that has no
    answer because its environment failed.
    """

    by: Literal["policy", "tool", "user"]
    """`tool` and `user` belong to the environment."""
    text: str
    tokens: int
    """Number of its tokens, with those of the template; 0 in a prompt that was rendered anew."""
    masked: bool
    """Whether losses leave them out."""
    calls: int | None = None
    """Number of tool calls."""
    reward: float | None = None
    """The environment's reward for the turn."""
    seconds: float | None = None
    """Time that the environment took to answer."""
    pictures: tuple[str, ...] | None = None
    """Names of the environment's pictures in it, 16 hexadecimal digits each; None without any."""


@dataclass(frozen=True, kw_only=True)
class SampledConversation:
    """A conversation with an environment, turn by turn."""

    ending: str
    """Why the conversation ended."""
    pieces: Sequence[ConversationPiece]

    def record(self) -> dict[str, Any]:
        """Return it as JSON values, without empty fields."""
        pieces = [
            {key: value for key, value in asdict(each).items() if value is not None}
            for each in self.pieces
        ]
        return {"ending": self.ending, "pieces": pieces}

    @property
    def pictures(self) -> list[str]:
        """Names of the environment's pictures, in order."""
        return [name for piece in self.pieces for name in piece.pictures or ()]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One response with its reward; the fields are the keys of its record."""

    prompt: str
    response: str
    reference: str
    """Reference answer that the reward compared with."""
    reward: float
    parts: Mapping[str, float]
    """Parts of the reward, by name."""
    finished: bool
    """False if the response was cut at its maximum length."""
    response_tokens: int
    conversation: SampledConversation | None = None
    """None without an environment; then it is not in the record."""
    pictures: tuple[str, ...] = ()
    """Names of its prompt's pictures, 16 hexadecimal digits each; without any they are not in the
    record."""
    data_source: str = ""
    """Selects the reward; empty without one. The last key, by which readers find it."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = dict(vars(self))
        if not self.pictures:
            del values["pictures"]
        if self.conversation is None:
            del values["conversation"]
        else:
            values["conversation"] = self.conversation.record()
        return values


class SampleLog(JsonLinesFile):
    """Writes one JSON line per sample, with its step."""

    def log(self, step: int, samples: Sequence[Sample]) -> None:
        """Append the samples, complete even if the process is killed right after."""
        self.append(*({"step": step, **sample.record()} for sample in samples))


def render(sample: Sample) -> RenderableType:
    """Lay out a sample for a terminal; control characters and markup in its text are inert."""
    length = f"{sample.response_tokens} tokens" + ("" if sample.finished else ", cut off")
    parts = "  ".join(f"{name} {value:.3f}" for name, value in sample.parts.items())
    sections = {
        "prompt": sample.prompt,
        "response": sample.response,
        "reference": sample.reference,
        "parts": parts,
    }
    lines = [
        Text.assemble((f"{label}\n", "bold"), printable(text))
        for label, text in sections.items()
        if text
    ]
    title = Text(f"reward {sample.reward:.3f}, {length}")
    return Panel(Group(*lines), title=title, title_align="left")
