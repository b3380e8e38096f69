"""Write a page about one run or several runs: `mindrl report`."""

import argparse
from pathlib import Path

from mindrl.observability.terminal import say
from mindrl.programs.arguments import parser_of
from mindrl.programs.exits import exit_code
from mindrl.report.live_page import PAGE

_EXAMPLE = """\
examples:
  mindrl report outputs/2026-11-22/09-00-00
  mindrl report outputs/2026-11-22/09-00-00 outputs/2026-11-22/10-00-00 --output both.html
  mindrl report outputs/2026-11-22/09-00-00 --data tables
"""


def report(name: str = "mindrl report") -> int:
    """Write the page of the runs named on the command line; returns the exit code."""
    about = (
        "Write one HTML page about a run, or about several beside each other: curves, times, "
        "memory, faults, samples, configuration. The page is one file and needs no network. A run "
        f"writes its own page, {PAGE}, into its folder."
    )
    parser = parser_of(name, about, _EXAMPLE)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    into = f"(default: {PAGE} in the folder of the run; of several, here)"
    add("--output", type=Path, metavar="FILE", help=f"where the page goes {into}")
    data = "write all numbers and all samples too: metrics.csv and samples.parquet"
    add("--data", type=Path, metavar="FOLDER", help=data)
    return exit_code(lambda: _report(parser.parse_args()))


def _report(options: argparse.Namespace) -> int:
    # Imported late: --help does not need them.
    from mindrl.report.page import write_page  # noqa: PLC0415
    from mindrl.report.run_state import RunState  # noqa: PLC0415
    from mindrl.report.tables import write_tables  # noqa: PLC0415

    runs: list[Path] = options.runs
    path = options.output or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    write_page(path, [RunState(run) for run in runs])
    say(f"written: {path}")
    if options.data:
        for table in write_tables(options.data, runs):
            say(f"written: {table}")
    return 0
