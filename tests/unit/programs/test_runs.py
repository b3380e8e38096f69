"""The list of runs, as a person and as a program reads it."""

import json
import os
from pathlib import Path

import pytest
from made_run import make_run

from mindrl.programs.entry import start


def listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    monkeypatch.setattr("sys.argv", ["runs.py", *arguments])
    assert start("runs") == 0
    return capsys.readouterr().out


def test_runs_are_listed_with_how_they_ended_and_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, (name, seed) in enumerate([("killed", 1), ("going", 1), ("over", 2)]):
        make_run(tmp_path / "a" / name, seed=seed)
        # The newest last; the first has been silent for an hour.
        when = (tmp_path / "a" / name / "metrics.jsonl").stat().st_mtime - (3600, 60, 0)[place]
        os.utime(tmp_path / "a" / name / "metrics.jsonl", (when, when))
    summary = {"status": "completed", "seconds": 65.0}
    (tmp_path / "a" / "over" / "summary.json").write_text(json.dumps(summary))
    found = json.loads(listed(monkeypatch, capsys, str(tmp_path), "--json"))["runs"]
    assert [(Path(run["run"]).name, run["status"]) for run in found] == [
        ("over", "completed"),
        ("going", "running"),
        ("killed", "no end"),
    ]
    over = found[0]
    assert (over["step"], over["steps"], over["accuracy"], over["reward"]) == (4, 14, 0.5, 0.54)
    assert over["differs"] == {"megatron_training.seed": "2"}
    text = listed(monkeypatch, capsys, str(tmp_path))
    assert "0:01:05" in text
    assert "completed" in text
    # A pipe has no width: a line for the titles and one for each run, however long its path.
    assert len(text.splitlines()) == 1 + 3
    assert all(len(line) > 80 for line in text.splitlines())


def test_where_there_are_none_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no runs in" in listed(monkeypatch, capsys, str(tmp_path))
    monkeypatch.setattr("sys.argv", ["runs.py", str(tmp_path / "missing")])
    assert start("runs") == 1
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "RUN is missing"),
        (("--live",), "RUN is missing"),
        (("run", "--port", "80"), "--port has an effect only with --live; leave it out"),
        (("run", "--json"), "--json has an effect only with --list; leave it out"),
        (("--live", "run", "--output", "a"), "--output has an effect only without --live and"),
        (("--list", "--data", "a"), "--data has an effect only without --live and --list"),
    ],
)
def test_an_option_of_another_kind_of_report_is_refused(
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["report.py", *arguments])
    assert start("report") == 2
    assert reason in " ".join(capsys.readouterr().err.split())
