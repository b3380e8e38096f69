"""One HTML page about one or more runs: a file that needs no network."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mindrl.observability.output_files import json_text, replace_file
from mindrl.report.charts import CHARTS
from mindrl.report.config_text import differences
from mindrl.report.run_state import RunState
from mindrl.report.shown_samples import shown_samples
from mindrl.report.thumbnails import thumbnails_of


def write_page(path: Path, runs: Sequence[RunState]) -> None:
    """Read what is new about runs and write their page atomically.

    Raises:
        OutputError: A file cannot be read or written.
    """
    replace_file(path, page(page_data(runs)).encode())


def page(data: Mapping[str, Any] | None) -> str:
    """Return the page with its data; without data, the page requests it from its server."""
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
    """Return JSON whose text cannot end the script element."""
    return json_text(value).replace("<", "\\u003c")


def page_data(runs: Sequence[RunState]) -> dict[str, Any]:
    """Read what is new about runs; return all data of a page.

    Raises:
        OutputError: A file cannot be read.
    """
    for run in runs:
        run.update()
    return of_all_runs(runs) | {"runs": [run.since(0) | _samples(run) for run in runs]}


def of_all_runs(runs: Sequence[RunState]) -> dict[str, Any]:
    """Return the data that a page shows about all runs together."""
    rows = differences([run.config for run in runs])
    return {
        "charts": [
            {"section": section, **asdict(chart)}
            for section, charts in CHARTS.items()
            for chart in charts
        ],
        "differences": [{"key": key, "values": values} for key, values in rows],
        "written": time.time(),
    }


def _samples(run: RunState) -> dict[str, Any]:
    rows = shown_samples(run.samples, run.pieces)
    return {"samples": rows, "thumbnails": thumbnails_of(run.folder, rows)}


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
