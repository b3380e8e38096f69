"""Read the content of a run folder, during the run or afterwards."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mindrl.errors import OutputError
from mindrl.observability.output_files import reading_errors, step_record
from mindrl.observability.regular_files import open_regular, read_regular_text

Line = Mapping[str, Any]
"""A line of a file of JSON lines."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as recorded in its folder, without samples."""

    folder: Path
    config: Line
    """Composed configuration, by section; `{}` if missing."""
    overrides: tuple[str, ...]
    """Overrides by the user."""
    summary: Line | None
    """None during the run, and after a kill."""
    metrics: tuple[Line, ...]
    """A row per step and per evaluation, each with its `step`."""
    faults: tuple[Line, ...]
    memory: tuple[Line, ...]
    plan: Line
    """Predictions of its plan; `{}` if missing."""
    traces: tuple[str, ...]
    """Files with timelines of steps, in order."""

    @property
    def last_step(self) -> int:
        """The newest recorded step; 0 before the first."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def steps(self) -> int | None:
        """Total number of steps; None if unknown."""
        steps: int | None = self.config.get("megatron_training", {}).get("train_iters")
        return steps


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    Raises:
        OutputError: It is no run folder, or a file of it cannot be read.
    """
    check_run_folder(folder)
    hydra = folder / ".hydra"
    return RunRecord(
        folder=folder.resolve(),
        config=read_complete(hydra / "config.yaml", yaml.safe_load) or {},
        overrides=tuple(read_complete(hydra / "overrides.yaml", yaml.safe_load) or ()),
        summary=read_complete(folder / "summary.json", json.loads),
        metrics=tuple(step_lines(folder / "metrics.jsonl")),
        faults=tuple(json_lines(folder / "faults.jsonl")),
        memory=tuple(json_lines(folder / "memory.jsonl")),
        plan=read_complete(folder / "plan.json", json.loads) or {},
        traces=trace_names(folder),
    )


def check_run_folder(folder: Path) -> None:
    """Raise OutputError unless a run has written into the folder."""
    if not (folder / "metrics.jsonl").is_file():
        raise OutputError(
            f"{folder} is not a run folder: it has no metrics.jsonl, which a run writes from its "
            "start on (docs/reference/outputs.md)"
        )


def trace_names(folder: Path) -> tuple[str, ...]:
    """Return the files with timelines of steps, in order."""
    names = [path.name for path in folder.glob("trace/step-*.json")]
    return tuple(f"trace/{name}" for name in sorted(names, key=lambda name: (len(name), name)))


def json_lines(path: Path) -> Iterator[Line]:
    """Yield the complete records of a file, without one that is being written."""
    for line in raw_lines(path):
        if (record := line_record(line)) is not None:
            yield record


def step_lines(path: Path) -> Iterator[Line]:
    """Yield the records of a file that have an integer step."""
    return (record for line in raw_lines(path) if (record := step_record(line)) is not None)


def line_record(line: bytes) -> Line | None:
    """Return the record of a line; None if it is damaged or incomplete."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; none if it does not exist.

    Raises:
        OutputError: It cannot be read.
    """
    with suppress(FileNotFoundError), reading_errors(path), open_regular(path) as file:
        yield from file


def step_of_line(line: bytes) -> int | None:
    """Return the step of a record without parsing the rest."""
    head, _, rest = line.partition(b": ")
    number = rest.partition(b",")[0]
    return int(number) if head == b'{"step"' and number.isdigit() else None


def read_complete(path: Path, load: Callable[[str], Any]) -> Any:
    """Return the loaded content of a file; None if it is missing or incomplete.

    Raises:
        OutputError: The file cannot be read.
    """
    try:
        with reading_errors(path):
            return load(read_regular_text(path))
    except (FileNotFoundError, ValueError, yaml.YAMLError):
        return None
