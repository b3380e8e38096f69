"""What the plan of a run predicted and what its steps measured."""

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from mindrl.report.run_record import Line

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


class PlannedNumbers:
    """Compare the predictions of a plan with the steps of its run, as they come."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.ranks: int = plan.get("ranks", 0)
        self.predicted: Mapping[str, float] = plan.get("predicted", {})
        self.patterns = {
            name: re.compile(re.escape(name).replace(r"\*", ".+")) for name in self.predicted
        }
        self.measured = {name: array("d") for name in self.predicted}

    def add(self, row: Line) -> None:
        """Add the metrics of a step; rows of evaluations measure nothing that is planned."""
        if "seconds/step" not in row:
            return
        for name, pattern in self.patterns.items():
            # Of the worker with most; bytes of all together.
            combine = max if name.startswith("memory/") else sum
            if values := self._fitting(row, pattern):
                self.measured[name].append(combine(values))

    def found(self) -> Iterator[PlannedNumber]:
        """Yield each prediction of something that was measured."""
        for name, values in self.measured.items():
            if values:
                yield PlannedNumber(
                    name=name,
                    planned=self.predicted[name],
                    median=median(values),
                    most=max(values),
                )

    def _fitting(self, row: Line, pattern: re.Pattern[str]) -> list[float]:
        """Return the values of a step that fit; ranks behind those of the plan only roll out."""
        names = [name for name in row if pattern.fullmatch(name)]
        return [
            row[name]
            for name in names
            if row[name] is not None
            and (not (worker := _WORKER.match(name)) or int(worker[1]) < self.ranks)
        ]
