"""The summary file under a killed writer, and its table."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mindrl.errors import OutputError
from mindrl.observability.output_files import write_json_atomically
from mindrl.observability.summary import render_summary

SUMMARY: dict[str, object] = {
    "status": "completed",
    "accuracy_before": 0.25,
    "accuracy_after": 0.4375,
    "logprob_gap_max_mean": 2.13e-7,
    "steps": 60,
    "seconds": 3725.4,
    "response_tokens_per_second": 2314.2,
    "run_dir": Path("/runs/[bold]a"),
    "logs": "/runs/a/logs",
    "tensorboard": "/runs/a/tb",
    "report": "/runs/a/report.html",
    "samples": "/runs/a/samples.jsonl",
    "metrics": "/runs/a/metrics.jsonl",
    "model": "/runs/a/model",
    "model_step": 60,
    "model_best": None,
    "model_best_step": None,
}

EVALUATIONS = {
    "math": {
        "before": {"avg@8": 0.25, "avg@8_low": 0.2, "avg@8_high": 0.3},
        "after": {"avg@8": 0.5, "avg@8_low": 0.4, "avg@8_high": 0.6},
    }
}


def test_each_set_has_a_row_with_the_interval_of_its_last_evaluation() -> None:
    assert shown(SUMMARY | {"evaluations": EVALUATIONS})[2].split() == [
        *("math", "avg@8", "0.250", "->", "0.500", "[0.400,", "0.600]")
    ]


def shown(summary: dict[str, object], width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(render_summary(summary))
    return [line.strip("│╭╮╰╯─ \n") for line in stream.getvalue().splitlines()]


def test_the_table_gives_accuracy_duration_speed_gap_and_every_place() -> None:
    assert shown(SUMMARY) == [
        "run completed",
        "accuracy                   0.250 -> 0.438 (+0.188)",
        "duration                   1:02:05",
        "steps                      60",
        "response tokens/s          2,314",
        "largest mean log-prob gap  2.1e-07",
        "run folder                 /runs/[bold]a",
        "report                     /runs/a/report.html",
        "metrics                    /runs/a/metrics.jsonl",
        "TensorBoard                /runs/a/tb",
        "samples                    /runs/a/samples.jsonl",
        "logs                       /runs/a/logs",
        "exported model             /runs/a/model (step 60)",
        "",
    ]


def test_what_should_not_have_happened_is_in_the_table_where_it_has() -> None:
    failures = {"rewards.py:[b]": {"exception": 256, "timeout": 3}}
    lines = shown(SUMMARY | {"reward_failures": failures, "steps_without_signal": 4})
    assert lines[6:8] == [
        "missing scores             rewards.py:[b]: 256 exception, 3 timeout",
        "steps without signal       4",
    ]


def test_each_tracker_has_a_row_with_its_place_and_what_it_lacks() -> None:
    trackers = {
        "wandb": {"place": "https://a/\x1b[31mb", "kept": 9, "missed": 0, "problem": None},
        "mlflow": {"place": None, "kept": 2, "missed": 7, "problem": "it has failed"},
    }
    lines = shown(SUMMARY | {"trackers": trackers})
    assert [line.split(maxsplit=1) for line in lines[13:15]] == [
        ["wandb", r"https://a/\x1b[31mb"],
        ["mlflow", "- (without 7 records)"],
    ]


def test_a_run_that_failed_before_its_first_step_still_has_a_table() -> None:
    lines = shown({"status": "failed", "accuracy_before": None, "logs": "/runs/\x1b[31mb"})
    assert [line.split() for line in lines] == [
        ["run", "failed"],
        ["logs", r"/runs/\x1b[31mb"],
        [],
    ]


def test_what_was_measured_once_has_a_row_and_what_never_was_has_none() -> None:
    of_two = shown(SUMMARY | {"accuracy_after": None})
    assert of_two[1].split() == ["accuracy", "0.250", "->", "-"]
    unmeasured = {"accuracy_before": None, "accuracy_after": None, "logprob_gap_max_mean": None}
    labels = {line.split()[0] for line in shown(SUMMARY | unmeasured)[1:-1]}
    assert not labels & {"accuracy", "largest", "best"}


def test_a_path_longer_than_the_terminal_is_folded_and_loses_no_letter() -> None:
    path = "/" + "".join(f"{number:04}" for number in range(40))
    lines = shown({**SUMMARY, "model_best": path}, width=60)
    start = next(i for i, line in enumerate(lines) if line.startswith("best model"))
    assert "".join(line.split()[-1] for line in lines[start:-1]) == path


def test_json_comes_back_equal_with_null_for_nan_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    write_json_atomically(path, {**SUMMARY, "logprob_gap_max_mean": math.nan})
    found = json.loads(path.read_text())
    assert found["run_dir"] == "/runs/[bold]a"
    assert found["logprob_gap_max_mean"] is None
    assert found["accuracy_after"] == 0.4375
    assert list(found) == list(SUMMARY)
    assert list(tmp_path.iterdir()) == [tmp_path / "summary.json"]


def test_a_writer_killed_while_replacing_the_file_over_and_over_leaves_a_whole_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "summary.json"
    program = (
        "import itertools, sys; from pathlib import Path\n"
        "from mindrl.observability.output_files import write_json_atomically\n"
        "for i in itertools.count():\n"
        "    write_json_atomically(Path(sys.argv[1]), {'i': i, 'list': [i] * 20000})\n"
        "    i == 3 and print('go', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        contents = {path.read_text() for _ in range(50)}
        process.kill()
    for content in (*contents, path.read_text()):
        found = json.loads(content)
        assert found["list"] == [found["i"]] * 20000


def test_what_cannot_be_written_is_reported_with_its_path_and_the_old_file_is_kept(
    tmp_path: Path,
) -> None:
    with pytest.raises(OutputError, match=f"{tmp_path}/gone/s.json cannot be written: No such"):
        write_json_atomically(tmp_path / "gone" / "s.json", {"a": 1})
    folder = tmp_path / "s.json"
    folder.mkdir()
    with pytest.raises(OutputError, match=r"s\.json cannot be written: Is a directory"):
        write_json_atomically(folder, {"a": 1})
    assert list(tmp_path.iterdir()) == [tmp_path / "s.json"]


def test_a_reader_that_opened_the_file_before_it_was_replaced_reads_the_old_one_to_its_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.json"
    write_json_atomically(path, {"a": 1})
    with path.open() as reader:
        write_json_atomically(path, {"a": 2})
        assert json.load(reader) == {"a": 1}
    assert json.loads(path.read_text()) == {"a": 2}


def test_a_value_json_cannot_hold_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("{}")
    with pytest.raises(TypeError):
        write_json_atomically(path, {"a": object()})
    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [tmp_path / "s.json"]
