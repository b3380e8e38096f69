"""Curves of a run's metrics, thinned if there are many steps."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import NamedTuple

MOST_POINTS = 2000
"""Maximum points of a curve: of a longer run every second step is shown, or every fourth, .., and
the last one."""
MOST_WORKERS = 8
"""Maximum number of workers whose metrics are shown; the others are in metrics.jsonl."""
_OF_WORKER = re.compile(r"worker_(\d+)")
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The last part of a metric's curve."""

    start: int
    """Number of points before these, which the reader already has."""
    steps: Sequence[int]
    values: Sequence[float | None]
    """None for values that were not finite."""


class Curves:
    """Holds the curves of a run, in bounded memory, as its rows arrive."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def add(self, row: Mapping[str, object], position: int) -> None:
        """Add a row of metrics at a position above those of all previous rows."""
        step = row["step"]
        assert isinstance(step, int), "rows without a step are removed earlier"
        for name, value in row.items():
            if name != "step" and _is_shown(name) and isinstance(value, int | float | None):
                self._series.setdefault(name, _Series()).add(step, value, position)

    def since(self, position: int) -> Iterator[tuple[str, Curve]]:
        """Yield the curves that have points above a position, by name."""
        for name, series in self._series.items():
            if (curve := series.since(position)) is not None:
                yield name, curve


class _Points(NamedTuple):
    """Stored points of a curve."""

    steps: "array[int]"
    values: "array[float]"
    positions: "array[int]"


class _Series:
    """Points of a metric: every `every`-th one, and the newest."""

    def __init__(self) -> None:
        self.every = 1
        self.count = 0
        """Points so far."""
        self.rewritten = 0
        """Position at which points before the newest were last changed."""
        self.points = _Points(array("q"), array("d"), array("q"))

    def add(self, step: int, value: float | None, position: int) -> None:
        steps = self.points.steps
        if steps and step <= steps[-1]:
            self._forget_from(step, position)
        elif self.count and (self.count - 1) % self.every:
            # It was kept only as the newest.
            self._keep(slice(len(steps) - 1))
        self._append(step, nan if value is None else value, position)
        self.count += 1
        if len(self.points.steps) > MOST_POINTS:
            self._thin(position)

    def since(self, position: int) -> Curve | None:
        steps, values, positions = self.points
        if positions[-1] <= position:
            return None
        start = bisect_right(positions, position) if position >= self.rewritten else 0
        shown = [None if isnan(each) else _short(each) for each in values[start:]]
        return Curve(start=start, steps=steps[start:].tolist(), values=shown)

    def _forget_from(self, step: int, position: int) -> None:
        """Remove a repeated step, and those after it."""
        self._keep(slice(bisect_left(self.points.steps, step)))
        kept = len(self.points.steps)
        self.count = (kept - 1) * self.every + 1 if kept else 0
        self.rewritten = position

    def _thin(self, position: int) -> None:
        steps, values, positions = self.points
        self._keep(slice(None, None, 2))
        if len(steps) % 2 == 0:
            self._append(steps[-1], values[-1], positions[-1])
        self.every, self.rewritten = 2 * self.every, position

    def _append(self, step: int, value: float, position: int) -> None:
        steps, values, positions = self.points
        steps.append(step)
        values.append(value)
        positions.append(position)

    def _keep(self, kept: slice) -> None:
        steps, values, positions = self.points
        self.points = _Points(steps[kept], values[kept], positions[kept])


def _is_shown(name: str) -> bool:
    worker = _OF_WORKER.search(name)
    return worker is None or int(worker[1]) < MOST_WORKERS


def _short(value: float) -> float:
    """Round to the precision of a picture."""
    return float(f"{value:.{_DIGITS}g}")
