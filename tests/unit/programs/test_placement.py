"""`plan placement`: output, inputs and refusals."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from user_programs import without_torch

from mindrl.platform.device_models import EXAMPLE_DEVICE
from mindrl.programs.entry import start

MODEL = ("--model", "Qwen2.5-7B", "--device", EXAMPLE_DEVICE)
SMALL = ("--devices", "3", "--prompts-per-step", "4", "--samples", "4", "--steps", "8")


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["plan.py", "placement", *SMALL, *arguments])
    return start("plan")


def test_orders_are_printed_without_torch_the_most_useful_first() -> None:
    ended = without_torch("cli/plan.py", "placement", *SMALL, *MODEL)
    assert ended.returncode == 0, ended.stderr
    shares = [
        int(cell.removesuffix("%"))
        for line in ended.stdout.splitlines()
        if " 3 shared " in line or " + " in line
        for cell in [next(word for word in line.split() if word.endswith("%"))]
    ]
    # On shared devices in turns and three of partial; apart in turns, one step off, and three.
    assert len(shares) == 9
    assert shares == sorted(shares, reverse=True)


def test_lengths_of_an_earlier_run_and_seconds_that_were_measured_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Responses of 100 tokens, 16 a step: 1 s of an engine, 1.6 s of a device and 0.25 s more."""
    columns = {
        "group": [0, 0, 0, 0],
        "prompt_token_ids": [[1]] * 4,
        "response_token_ids": [[7] * 100] * 4,
    }
    pq.write_table(pa.table(columns), tmp_path / "step_000001.parquet")
    rates = ("--engine-step", "0.01", "--trained-token", "0.001", "--update", "0.25")
    given = ("--rollouts", str(tmp_path), *rates, "--max-staleness", "1", "--json")
    assert ran(monkeypatch, *given) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lengths"] == {"mean": 100, "p99": 100, "longest": 100}
    seconds = {
        (each["order"], each["training"], each["rollout"]): each["step_seconds"]
        for each in answer["orders"]
    }
    assert seconds["in_turns", 3, 3] == pytest.approx(1.0 + 1.6 / 3 + 0.25)
    assert seconds["one_step_off", 2, 1] == pytest.approx(1.6 / 2 + 0.25)


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, (), "--engine-step and --trained-token are missing; or give --model and --device"),
        (
            2,
            (*MODEL, "--p99-tokens", "10"),
            "--p99-tokens 10 must be between 2000 (--mean-tokens) and",
        ),
        (2, (*MODEL, "--replica-devices", "2"), "--devices 3 must be a multiple of"),
        (1, (*MODEL, "--rollouts", "nowhere"), "nowhere has no .parquet files"),
    ],
)
def test_what_it_cannot_do_is_refused(
    code: int,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ran(monkeypatch, *arguments) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "need"),
    [
        *(("--engine-step", text, "above 0") for text in ("0", "-1", "nan", "inf", "x")),
        *(("--switch", text, "0 or more") for text in ("-1", "nan", "inf", "x")),
        *(
            (option, text, "between 1e-12 and 1e+12")
            for option in ("--engine-step", "--switch")
            for text in ("1e308", "1e-320")
        ),
    ],
)
def test_a_rate_that_is_no_time_is_refused(
    option: str,
    text: str,
    need: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ran(monkeypatch, *MODEL, f"{option}={text}")
    assert f"argument {option}: {text} must be {need}" in capsys.readouterr().err
