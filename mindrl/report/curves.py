"""The numbers of a run as curves: one for each metric, thinned where there are many steps."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from mindrl.report.run_record import RunRecord

MOST_POINTS = 2000
"""Of a curve: of a longer run every second step is shown, or every third, and the last one."""
MOST_WORKERS = 8
"""Of which the metrics that each has are shown; the others are in metrics.jsonl."""
_OF_WORKER = re.compile(r"worker_(\d+)")
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric over the steps that have it."""

    steps: Sequence[int]
    values: Sequence[float | None]
    """None where it was no finite number."""


def curves_of(run: RunRecord) -> dict[str, Curve]:
    """Return the curves of a run by the names of their metrics."""
    found: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
    for row in run.metrics:
        for name, value in row.items():
            if name != "step" and _is_shown(name):
                found[name][row["step"]] = value
    return {name: _curve(points) for name, points in found.items()}


def _is_shown(name: str) -> bool:
    worker = _OF_WORKER.search(name)
    return worker is None or int(worker[1]) < MOST_WORKERS


def _curve(points: Mapping[int, float | None]) -> Curve:
    steps = sorted(points)
    every = ceil(len(steps) / MOST_POINTS) or 1
    kept = steps[::every]
    if steps[-1] != kept[-1]:
        kept.append(steps[-1])
    values = [points[step] for step in kept]
    return Curve(steps=kept, values=[None if each is None else _short(each) for each in values])


def _short(value: float) -> float:
    """Round to what a picture shows."""
    return float(f"{value:.{_DIGITS}g}")
