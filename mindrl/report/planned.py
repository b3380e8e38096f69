"""Compare the predictions of a run's plan with measurements of its steps."""

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from mindrl.report.run_record import Line


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
            fitting = [value for metric, value in row.items() if pattern.fullmatch(metric)]
            if values := [value for value in fitting if value is not None]:
                self.measured[name].append(sum(values))

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
