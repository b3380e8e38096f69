"""List all runs below a folder, one per line: `mindrl runs`."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column

from mindrl.errors import OutputError
from mindrl.observability.terminal import print_rows, printable, say
from mindrl.programs.arguments import parser_of
from mindrl.programs.exits import exit_code, print_json
from mindrl.report.config_text import differences
from mindrl.report.run_record import RunRecord, read_run

_EXAMPLE = """\
examples:
  mindrl runs
  mindrl runs outputs/2026-11-22 /shared/runs --json
"""
_QUIET_SECONDS = 600.0
"""Seconds without output after which an unfinished run is assumed to be killed."""


def runs(name: str = "mindrl runs") -> int:
    """List the runs below the folders of the command line; returns the exit code."""
    about = (
        "List the runs below folders, the newest first: how each ended, what it reached, how long "
        "it took, and the keys in which it differs from the others."
    )
    parser = parser_of(name, about, _EXAMPLE)
    folders = "where to look (default: outputs)"
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=folders)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    return exit_code(lambda: _list(options))


def _list(options: argparse.Namespace) -> int:
    folders = options.folders or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise OutputError(f"{folder} is no folder; runs lie in outputs/ unless told otherwise")
    found = sorted(
        (path for folder in folders for path in folder.rglob("metrics.jsonl")),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    # A measurement of a model writes metrics too, but has no configuration.
    records = [read_run(path.parent) for path in found if (path.parent / ".hydra").is_dir()]
    lines = [*map(_line, records, _differing(records))]
    if options.json:
        print_json({"runs": lines})
        return 0
    if not lines:
        say(f"no runs below {', '.join(map(str, folders))}")
        return 0
    short = _shortened([key for line in lines for key in line["differs"]])
    shown = (tuple(escape(printable(each)) for each in _cells(line, short)) for line in lines)
    titles = ("run", "status", "step", "accuracy", "reward", "time", "differs in")
    print_rows(shown, *(Column(title, overflow="fold") for title in titles))
    return 0


def _line(run: RunRecord, differing: dict[str, str | None]) -> dict[str, Any]:
    """Return the figures of a run."""
    summary = run.summary or {}
    accuracies = [row["evaluation/accuracy"] for row in run.metrics if "evaluation/accuracy" in row]
    rewards = [row["reward/mean"] for row in run.metrics if "reward/mean" in row]
    return {
        "run": str(run.folder),
        "status": summary.get("status") or _unended(run),
        "step": run.last_step,
        "steps": run.steps,
        "accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max((each for each in accuracies if each is not None), default=None),
        "reward": rewards[-1] if rewards else None,
        "seconds": summary.get("seconds"),
        "differs": differing,
    }


def _unended(run: RunRecord) -> str:
    quiet = time.time() - (run.folder / "metrics.jsonl").stat().st_mtime
    return "goes on" if quiet < _QUIET_SECONDS else "no end"


def _differing(records: Sequence[RunRecord]) -> list[dict[str, str | None]]:
    """Return, by run, the keys with different values that all runs have; some keys are newer."""
    found = differences([run.config for run in records])
    rows = [(key, values) for key, values in found if None not in values]
    return [{key: values[place] for key, values in rows} for place in range(len(records))]


def _shortened(keys: Iterable[str]) -> dict[str, str]:
    """Return a short name for each key: its last part if that is unique, else the whole key."""
    lasts = {key: key.rpartition(".")[2] for key in keys}
    counts = Counter(lasts.values())
    return {key: last if counts[last] == 1 else key for key, last in lasts.items()}


def _cells(line: dict[str, Any], short: Mapping[str, str]) -> tuple[str, ...]:
    seconds = line["seconds"]
    took = "-" if seconds is None else str(timedelta(seconds=round(seconds)))
    return (
        os.path.relpath(line["run"]),
        str(line["status"]),
        f"{line['step']}/{line['steps'] or '?'}",
        " best ".join(_number(line[name]) for name in ("accuracy", "best_accuracy")),
        _number(line["reward"]),
        took,
        "\n".join(f"{short[key]}={value}" for key, value in line["differs"].items()),
    )


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"
