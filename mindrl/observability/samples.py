"""A log of prompts and responses for people to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mindrl.observability.output_files import JsonLinesFile
from mindrl.observability.terminal import printable


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
    data_source: str = ""
    """Selects the reward; empty without one."""


class SampleLog(JsonLinesFile):
    """Writes one JSON line per sample, with its step."""

    def log(self, step: int, samples: Sequence[Sample]) -> None:
        """Append the samples, complete even if the process is killed right after."""
        self.append(*({"step": step, **vars(sample)} for sample in samples))


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
