"""The real tracker libraries, without network; each is skipped if it is not installed."""

import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mindrl.config.tracking import TRACKERS
from mindrl.tracking.job import TrackerJob, TrackerState
from mindrl.tracking.libraries import LIBRARIES
from mindrl.tracking.process import ProcessTracker


def test_the_names_of_the_configuration_are_those_that_can_be_opened() -> None:
    assert tuple(LIBRARIES) == TRACKERS


def run_of(
    root: Path, name: str, first: int, last: int, *, status: str = "completed", rows: int = 0
) -> dict[str, object]:
    """Hand the steps up to the last to a tracker, whose run goes on before the first of them."""
    metrics = root / "metrics.jsonl"
    lines = [{"step": step, "reward/own.py:score": step / 8} for step in range(1, last + 1)]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for path, of_step in ((root / "samples.jsonl", 3), (root / "evaluations.jsonl", 4)):
        samples = [sample(path.stem, step, nr) for step in range(last + 1) for nr in range(of_step)]
        path.write_text("".join(f"{json.dumps(each)}\n" for each in samples))
    (root / "report.html").write_text("<!doctype html><p>a report")
    job = TrackerJob(
        name=name,
        project="mindrl-tests",
        experiment="a run",
        offline=True,
        timeout_seconds=120,
        goes_on=first > 1,
        folder=str(root / "trackers" / name),
        metrics=str(metrics),
        config={f"section.key_{number}": number for number in range(120)},
        sample_rows=rows,
        sample_interval=2,
    )
    tracker = ProcessTracker(job, root / f"{name}.log")
    tracker.run_status = status
    tracker.close()
    return tracker.outcome()


def sample(kind: str, step: int, number: int) -> dict[str, object]:
    return {
        "step": step,
        "prompt": f"prompt {number} of {kind} {step}",
        "response": "secret " * 2000,
        "reference": "2",
        "reward": number / 2,
        "parts": {"math_verify": 1.0},
        "finished": True,
        "response_tokens": 1,
        "data_source": "",
    }


@pytest.fixture
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(key, "http://127.0.0.1:9")


@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.usefixtures("without_network")
def test_a_run_and_its_going_on_are_kept_without_network(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    for first, last in ((1, 3), (3, 5)):
        outcome = run_of(tmp_path, name, first, last)
        assert (outcome["kept"], outcome["missed"], outcome["problem"]) == (last, 0, None)
    state = TrackerState.of(str(tmp_path / "trackers" / name))
    assert state.id is not None
    named = [path for path in (tmp_path / "trackers").rglob("*") if state.id in path.name]
    assert named, "the run goes on under its name"
    # Texts are sent where they are asked for alone.
    kept = [path for path in (tmp_path / "trackers").rglob("*") if path.is_file()]
    assert [path for path in kept if b"secret secret" in path.read_bytes()] == []
    assert [path for path in kept if path.name == "report.html"] == []
    if name == "mlflow":
        (values,) = (tmp_path / "trackers").rglob("own.py_score")
        found = [line.split()[1:] for line in values.read_text("utf-8").splitlines()]
        assert found == [[str(step / 8), str(step)] for step in range(1, 6)]


@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.usefixtures("without_network")
def test_samples_are_tables_and_the_report_is_an_artefact(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    for first, last in ((1, 3), (3, 5)):
        assert run_of(tmp_path, name, first, last, rows=2)["problem"] is None
    state = TrackerState.of(str(tmp_path / "trackers" / name))
    # Of training each second step, of evaluations each; no step twice.
    assert state.tables == {"step": 4, "evaluation": 5}
    expected = {"tables": 9} if name == "swanlab" else {"step": 3, "evaluation": 6}
    assert _tables(tmp_path / "trackers" / name, name) == expected
    reports = [path for path in (tmp_path / "trackers").rglob("*report*") if path.is_file()]
    content = (tmp_path / "report.html").read_bytes()
    in_files = [path for path in reports if path.read_bytes() == content]
    # W&B names its file after the sum of what is in it, and sends it from its cache.
    assert in_files or (name == "wandb" and _is_in_log(tmp_path, b"report-"))


def _tables(folder: Path, name: str) -> dict[str, int]:
    """Return how many steps have a table, by kind, each of two rows and with both ends of texts."""
    if name == "mlflow":
        paths = [*folder.rglob("from_step_*.json")]
        tables = {path.parent.name: json.loads(path.read_text()) for path in paths}
        assert all("[... 6,000 characters omitted ...]" in str(each) for each in tables.values())
        return {kind: len(table["data"]) // 2 for kind, table in tables.items()}
    if name == "wandb":
        paths = [path for path in folder.rglob("*.table.json") if path.is_file()]
        found = [(path.name.split("_")[0], json.loads(path.read_text())) for path in paths]
        assert all(len(table["data"]) == 2 for _, table in found)
        return dict(Counter(kind for kind, _ in found))
    # The files of SwanLab do not name what they are of.
    charts = [json.loads(path.read_text()) for path in folder.rglob("echarts/*.json")]
    assert all(len(chart["rowData"]) == 2 for chart in charts)
    return {"tables": len(charts)}


def _is_in_log(root: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in root.rglob("*.wandb"))


STATUSES = {
    "mlflow": {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"},
    "wandb": {"completed": 0, "failed": 1, "interrupted": 255},
    "swanlab": {
        "completed": "RUN_STATE_FINISHED",
        "failed": "RUN_STATE_CRASHED",
        "interrupted": "RUN_STATE_ABORTED",
    },
}
"""How each library writes down how a run ended."""


@pytest.mark.parametrize("status", ["completed", "failed", "interrupted"])
@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.usefixtures("without_network")
def test_a_run_ends_there_as_it_ended(name: str, status: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    run_of(tmp_path, name, 1, 2, status=status)
    assert _status(tmp_path / "trackers" / name, name) == STATUSES[name][status]


def _status(folder: Path, name: str) -> object:
    """Return how the run ended by the record that the library would send."""
    if name == "mlflow":
        from mlflow.entities import RunStatus

        (meta,) = folder.glob("mlruns/*/*/meta.yaml")
        return RunStatus.to_string(yaml.safe_load(meta.read_text())["status"])
    if name == "wandb":
        from wandb.proto import wandb_internal_pb2

        (path,) = folder.rglob("*.wandb")
        found = [wandb_internal_pb2.Record.FromString(each) for each in _log_records(path)]
        return next(each.exit.exit_code for each in found if each.HasField("exit"))
    from swanlab.proto.swanlab.record.v1 import record_pb2
    from swanlab.proto.swanlab.run.v1 import run_pb2

    (path,) = folder.rglob("*.swanlab")
    records = [record_pb2.Record.FromString(each) for each in _log_records(path)]
    (state,) = [each.finish.state for each in records if each.HasField("finish")]
    return run_pb2.RunState.Name(state)


def _log_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in the log format of LevelDB, which both libraries keep."""
    content, at, record, head, block = path.read_bytes(), 7, b"", 7, 1 << 15
    while at + head <= len(content):
        left = block - at % block
        if left < head:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + head])
        record += content[at + head : at + head + length]
        at += head + length
        # Of a record in parts this is one before the last.
        if kind not in (2, 3):
            yield record
            record = b""
