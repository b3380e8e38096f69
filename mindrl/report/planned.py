"""What the plan of a run predicted beside what its steps measured."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from mindrl.report.run_record import Line, RunRecord

_WORKER = re.compile(r"memory/worker_(\d+)/")


@dataclass(frozen=True, kw_only=True)
class PlannedNumber:
    """A prediction and what became of it."""

    name: str
    """Of the metric; `*` stands for any text."""
    planned: float
    median: float
    """Of the steps."""
    most: float
    """Of any step."""


def planned_numbers(run: RunRecord) -> Iterator[PlannedNumber]:
    """Yield what was predicted and is measured: of the worker with most, bytes of all together."""
    for name, planned in run.plan.get("predicted", {}).items():
        pattern = re.compile(re.escape(name).replace(r"\*", ".+"))
        combine = max if name.startswith("memory/") else sum
        found = [_fitting(run, row, pattern) for row in run.metrics if "seconds/step" in row]
        if values := [combine(each) for each in found if each]:
            yield PlannedNumber(name=name, planned=planned, median=median(values), most=max(values))


def _fitting(run: RunRecord, row: Line, pattern: re.Pattern[str]) -> list[float]:
    """Return the values of a step that fit; ranks behind those of the plan only roll out."""
    names = [name for name in row if pattern.fullmatch(name)]
    return [
        row[name]
        for name in names
        if not (worker := _WORKER.match(name)) or int(worker[1]) < run.plan["ranks"]
    ]
