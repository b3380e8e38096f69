"""One HTML page about a run, or several: a file that needs no network."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mindrl.observability.output_files import json_text, replace_file
from mindrl.report.advice import Adviser
from mindrl.report.charts import CHARTS
from mindrl.report.config_text import differences, flat
from mindrl.report.curves import curves_of
from mindrl.report.planned import planned_numbers
from mindrl.report.run_record import RunRecord, read_run
from mindrl.report.shown_samples import shown_samples
from mindrl.report.token_texts import token_texts

MOST_MOMENTS = 4000
"""Of the memory timeline, of all workers and steps together."""


def write_page(path: Path, folders: Sequence[Path]) -> None:
    """Write the page about these runs, whole or not at all.

    Raises:
        OutputError: A folder is of no run, or a file cannot be read or written.
    """
    replace_file(path, page(page_data(folders)).encode())


def page(data: Any | None) -> str:
    """Return the page with its data; without, it asks the server that it came from."""
    environment = Environment(
        loader=PackageLoader("mindrl.report", "."), autoescape=True, undefined=StrictUndefined
    )
    scripts = [_text("mindrl.report", name) for name in ("page.js", "samples.js")]
    return environment.get_template("page.html").render(
        title=" | ".join(run["name"] for run in data["runs"]) if data else "mindrl",
        style=Markup(_text("mindrl.report", "page.css")),  # noqa: S704
        plotly=Markup(_text("plotly", "package_data/plotly.min.js")),  # noqa: S704
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        data=Markup(in_script(data)),  # noqa: S704
    )


def in_script(value: object) -> str:
    """Return JSON that no text in it can end the script element of."""
    return json_text(value).replace("<", "\\u003c")


def page_data(folders: Sequence[Path]) -> dict[str, Any]:
    """Return all that a page shows.

    Raises:
        OutputError: A folder is of no run, or a file cannot be read.
    """
    runs = [read_run(folder) for folder in folders]
    rows = differences([run.config for run in runs])
    return {
        "runs": [run_data(run) for run in runs],
        "charts": [asdict(chart) for chart in CHARTS],
        "differences": [{"key": key, "values": values} for key, values in rows],
        "written": time.time(),
    }


def run_data(run: RunRecord) -> dict[str, Any]:
    """Return what a page shows of one run."""
    samples, adviser = shown_samples(run.folder, token_texts(run)), Adviser()
    for row in run.metrics:
        adviser.heed(row)
    return {
        "name": "/".join(run.folder.parts[-2:]),
        "folder": str(run.folder),
        "status": run.summary["status"] if run.summary else "no end on record",
        "step": run.last_step,
        "steps": run.steps,
        "summary": run.summary,
        "overrides": run.overrides,
        "config": dict(flat(run.config)),
        "numbers": run.plan.get("numbers", {}),
        "planned": [asdict(each) for each in planned_numbers(run)],
        "curves": {name: asdict(curve) for name, curve in curves_of(run).items()},
        "advice": [asdict(each) for each in adviser.given.values()],
        "faults": run.faults,
        "memory": run.memory[-MOST_MOMENTS:],
        "traces": run.traces,
        "samples": samples.rows,
        "samples_total": samples.total,
    }


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
