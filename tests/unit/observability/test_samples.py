"""Samples in the file and on the screen."""

import io
import json
import math
from pathlib import Path
from types import MappingProxyType

import pytest
from rich.console import Console

from mindrl.errors import OutputError
from mindrl.observability.samples import Sample, SampleLog, render

HOSTILE = "a\x1b[31mred [bold]loud[/bold] [/] \x00 :smile:"


def sample(**changes: object) -> Sample:
    fields = {
        "prompt": "What is 3 + 4?",
        "response": "It is 7.",
        "reference": "7",
        "reward": 1.0,
        "parts": MappingProxyType({"accuracy": 1.0, "format": 0.0}),
        "finished": True,
        "response_tokens": 5,
    }
    return Sample(**(fields | changes))  # type: ignore[arg-type]


def shown(value: Sample, *, terminal: bool) -> str:
    stream = io.StringIO()
    Console(file=stream, width=72, force_terminal=terminal, color_system="truecolor").print(
        render(value)
    )
    return stream.getvalue()


def test_samples_of_two_steps_come_back_from_the_file_field_by_field(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "samples.jsonl")
    log.log(1, [sample(), sample(response=HOSTILE, finished=False, reward=math.nan)])
    log.log(2, [])
    log.log(3, [sample(reward=0.5)])
    log.close()
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    first, second, third = (json.loads(line) for line in lines)
    assert first == {
        "step": 1,
        "prompt": "What is 3 + 4?",
        "response": "It is 7.",
        "reference": "7",
        "reward": 1.0,
        "parts": {"accuracy": 1.0, "format": 0.0},
        "finished": True,
        "response_tokens": 5,
        "data_source": "",
    }
    assert second["response"] == HOSTILE
    assert second["finished"] is False
    assert second["reward"] is None
    assert (third["step"], third["reward"]) == (3, 0.5)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("field", ["prompt", "response", "reference"])
def test_escapes_markup_and_nul_in_a_sample_are_shown_as_text(field: str, terminal: bool) -> None:
    output = shown(sample(**{field: HOSTILE}), terminal=terminal)
    assert r"a\x1b[31mred [bold]loud[/bold] [/] \x00 :smile:" in output
    assert "\x1b[31m" not in output
    assert "\x00" not in output


def test_names_of_reward_parts_cannot_carry_escapes_either() -> None:
    output = shown(sample(parts={"\x1b[31m[bold]": 0.5}), terminal=True)
    assert r"\x1b[31m[bold] 0.500" in output


def test_the_title_says_the_reward_the_length_and_whether_the_response_was_cut_off() -> None:
    assert "reward 1.000, 5 tokens ─" in shown(sample(), terminal=False)
    assert "reward -0.500, 64 tokens, cut off" in shown(
        sample(reward=-0.5, finished=False, response_tokens=64), terminal=False
    )


def test_a_sample_file_that_cannot_be_made_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"{tmp_path}/file/samples.jsonl"):
        SampleLog(tmp_path / "file" / "samples.jsonl")
