"""Write a page about runs, serve it while they run, or list runs: `mindrl report`."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mindrl.config.server_address import is_loopback
from mindrl.errors import ConfigError, OutputError
from mindrl.observability.terminal import note, print_table, say
from mindrl.programs.arguments import Program, port_number, refuse_unless
from mindrl.programs.exits import print_json
from mindrl.report.config_text import differences
from mindrl.report.live_page import PAGE
from mindrl.report.run_record import RunRecord, read_run

_EXAMPLE = """\
examples:
  mindrl report outputs/2026-11-22/09-00-00
  mindrl report outputs/2026-11-22/09-00-00 outputs/2026-11-22/10-00-00 --output both.html
  mindrl report outputs/2026-11-22/09-00-00 --data tables
  mindrl report --live outputs/2026-11-22/09-00-00 --port 8265
  mindrl report --list outputs/2026-11-22 /shared/runs --json

Only this machine can open a live page. For a run on a server, open a tunnel to it first:
  ssh -L 8265:127.0.0.1:8265 SERVER
and start there: mindrl report --live RUN --port 8265. Ctrl-C stops the page; the run continues.
"""
_COLUMNS = {
    "run": "{run}",
    "status": "{status}",
    "step": "{step}/{steps}",
    "accuracy": "{accuracy:.3f} best {best_accuracy:.3f}",
    "reward": "{reward:.3f}",
    "time": "{time}",
    "differs in": "{differs}",
}
_QUIET_SECONDS = 600.0
"""Seconds without output after which an unfinished run is assumed to be killed."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="folder of a run; with --list of runs")
    other = parser.add_mutually_exclusive_group()
    live = "serve the page, which updates every 5 seconds, on the loopback address"
    other.add_argument("--live", action="store_true", help=live)
    listed = "list the runs in folders (default: outputs), the newest first: status, accuracy, "
    listed += "duration, and the keys in which each differs from the others"
    other.add_argument("--list", action="store_true", help=listed)
    into = f"(default: {PAGE} in the run folder; for several runs, here)"
    add("--output", type=Path, metavar="FILE", help=f"file of the page {into}")
    data = "also write all numbers and samples: metrics.csv and samples.parquet"
    add("--data", type=Path, metavar="FOLDER", help=data)
    port = "port of --live (default: a free one)"
    add("--port", type=port_number, metavar="N", help=port)
    host = "address of --live (default: 127.0.0.1, only this machine)"
    add("--host", metavar="HOST", help=host)
    add("--json", action="store_true", help="print the list as one JSON object")


def _report(options: argparse.Namespace) -> int:
    writes = not (options.live or options.list)
    refuse_unless(writes, "without --live and --list", options, ("--output", "--data"))
    refuse_unless(options.live, "with --live", options, ("--port", "--host"))
    refuse_unless(options.list, "with --list", options, ("--json",))
    if options.list:
        return _list(options)
    if not options.runs:
        raise ConfigError("RUN is missing: name the folder of a run; mindrl report --list has all")
    return _serve(options) if options.live else _write(options)


def _write(options: argparse.Namespace) -> int:
    # Imported late: --help does not need them.
    from mindrl.report.page import write_page  # noqa: PLC0415
    from mindrl.report.run_state import RunState  # noqa: PLC0415
    from mindrl.report.tables import write_tables  # noqa: PLC0415

    runs: list[Path] = options.runs
    path = options.output or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    write_page(path, [RunState(run) for run in runs])
    say(f"written: {path}")
    if options.data:
        say(*(f"written: {table}" for table in write_tables(options.data, runs)))
    return 0


def _serve(options: argparse.Namespace) -> int:
    # Imported late: --help does not need it.
    from mindrl.report.server import PageServer  # noqa: PLC0415

    host, port = options.host or "127.0.0.1", options.port or 0
    with PageServer(options.runs, host=host, port=port) as server:
        if not is_loopback(host):
            note(f"others may reach {host}, and the page is not encrypted")
        say(f"open {server.url}", "Ctrl-C stops the page; the run continues.")
        server.read_ahead()
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _list(options: argparse.Namespace) -> int:
    folders = options.runs or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise OutputError(f"{folder} is not a folder; the default folder of runs is outputs/")
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
        say(f"no runs in {', '.join(map(str, folders))}")
        return 0
    short = _shortened([key for line in lines for key in line["differs"]])
    print_table((_shown(line, short) for line in lines), _COLUMNS)
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
    return "running" if quiet < _QUIET_SECONDS else "no end"


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


def _shown(line: dict[str, Any], short: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of a run as the table shows them."""
    seconds, differs = line["seconds"], line["differs"].items()
    return line | {
        "run": os.path.relpath(line["run"]),
        "time": None if seconds is None else timedelta(seconds=round(seconds)),
        "differs": "\n".join(f"{short[key]}={value}" for key, value in differs),
    }


PROGRAM = Program(
    about="Write one HTML page about one or more runs: curves, times, memory, faults, samples and "
    "configuration. The page is one file and needs no network. A run writes its own page, "
    f"{PAGE}, into its folder.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_report,
)
