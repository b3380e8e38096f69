"""Compare the predictions of a run's plan with measurements of its steps."""

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
    """A prediction and the measurements."""

    name: str
    """Name of the metric; `*` matches any text."""
    planned: float
    median: float
    """Median over the steps."""
    most: float
    """Maximum over the steps."""


class PlannedNumbers:
    """Compares the predictions of a plan with the steps of its run, as they arrive."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.ranks: int = plan.get("ranks", 0)
        self.predicted: Mapping[str, float] = plan.get("predicted", {})
        self.patterns = {
            name: re.compile(re.escape(name).replace(r"\*", ".+")) for name in self.predicted
        }
        self.measured = {name: array("d") for name in self.predicted}

    def add(self, row: Line) -> None:
        """Add the metrics of a step; rows of evaluations are ignored."""
        if "seconds/step" not in row:
            return
        for name, pattern in self.patterns.items():
            # Maximum over the workers for memory; sum for bytes.
            combine = max if name.startswith("memory/") else sum
            if values := self._fitting(row, pattern):
                self.measured[name].append(combine(values))

    def found(self) -> Iterator[PlannedNumber]:
        """Yield each prediction with measurements."""
        for name, values in self.measured.items():
            if values:
                yield PlannedNumber(
                    name=name,
                    planned=self.predicted[name],
                    median=median(values),
                    most=max(values),
                )

    def _fitting(self, row: Line, pattern: re.Pattern[str]) -> list[float]:
        """Return the matching values of a step, without ranks that only roll out."""
        names = [name for name in row if pattern.fullmatch(name)]
        return [
            row[name]
            for name in names
            if row[name] is not None
            and (not (worker := _WORKER.match(name)) or int(worker[1]) < self.ranks)
        ]
