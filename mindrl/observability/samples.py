"""What the model wrote: a log of prompts and responses for people to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mindrl.observability.json_lines import JsonLinesFile
from mindrl.observability.printable import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One response with its reward."""

    prompt: str
    response: str
    answer: str
    """The right answer, which the reward compared with."""
    reward: float
    components: Mapping[str, float]
    """What the reward is made of, by name."""
    finished: bool
    """False if the response was cut off at its longest length."""
    response_tokens: int


class SampleLog:
    """Write one JSON line per sample, with its step. Raises as `JsonLinesFile`."""

    def __init__(self, path: Path) -> None:
        self._file = JsonLinesFile(path)

    def write(self, step: int, samples: Sequence[Sample]) -> None:
        """Append the samples, whole even if the process is killed right after."""
        self._file.append(*({"step": step, **_record(sample)} for sample in samples))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def render(sample: Sample) -> RenderableType:
    """Lay a sample out for a terminal; its text can neither command nor style it."""
    length = f"{sample.response_tokens} tokens" + ("" if sample.finished else ", cut off")
    parts = "  ".join(f"{name} {value:.3f}" for name, value in sample.components.items())
    sections = (
        ("prompt", sample.prompt),
        ("response", sample.response),
        ("reference", sample.answer),
        ("parts", parts),
    )
    lines = [
        Text.assemble((f"{label}\n", "bold"), printable(text)) for label, text in sections if text
    ]
    title = Text(f"reward {sample.reward:.3f}, {length}")
    return Panel(Group(*lines), title=title, title_align="left")


def _record(sample: Sample) -> dict[str, object]:
    return {
        "prompt": sample.prompt,
        "response": sample.response,
        "reference": sample.answer,
        "reward": sample.reward,
        "parts": sample.components,
        "finished": sample.finished,
        "response_tokens": sample.response_tokens,
    }
