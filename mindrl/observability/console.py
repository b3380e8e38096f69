"""Progress of a run for the user: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Self, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from mindrl.observability.live_bar import LiveBar
from mindrl.observability.metrics import Metrics
from mindrl.observability.terminal import printable

NARROWEST_CELL = 7
_UNFOLDED = 10_000
"""Width in columns of an output without a width."""
ROWS_PER_HEADER = 20

StepColumns = tuple[tuple[str, str, str], ...]
"""Columns of the step lines: label, metric, and format as for the built-in `format`."""
COLUMNS: StepColumns = (
    ("reward", "reward/mean", ".3f"),
    ("loss", "update/policy_loss", ".4f"),
    ("gap", "logprob_gap/mean", ".1e"),
    ("tok/s", "throughput/response_tokens_per_second", ".0f"),
    ("rollout s", "seconds/rollout", ".1f"),
    ("update s", "seconds/update", ".1f"),
    ("step s", "seconds/step", ".1f"),
)
"""Columns of a run that generates."""
MORE = (
    ("failed", "reward/failed_share", ".0%"),
    ("timed out", "reward/timeouts", ".0f"),
    ("probed tokens", "logprob_gap/probe_tokens", ".0f"),
)
"""Appended to the step lines in which they are above 0."""


class StepConsole:
    """Show the progress of a run; use it as a context manager.

    On a terminal: one row per step under a header, above a live bar with the time left, the stage,
    the rewards as a line, workers and memory.
    Elsewhere, such as in a log file: one self-contained line per step, flushed at once.
    Steps count from 1 to `total_steps`. A metric that is missing shows as "-".
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        columns: StepColumns = COLUMNS,
    ) -> None:
        self._total_steps = total_steps
        self._columns = columns
        self._rows = 0
        self._first_step: tuple[int, float] | None = None
        self._stream = sys.stdout if stream is None else stream
        self._console = Console(file=self._stream, highlight=False)
        is_live = self._stream.isatty() and not self._console.is_dumb_terminal
        self._progress = LiveBar(self._console) if is_live else None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.add_task("training", total=self._total_steps)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.enter("")
            self._progress.stop()

    def stage(self, name: str) -> None:
        """Show the current stage on the live bar, if there is one; the name may be empty."""
        if self._progress is not None:
            self._progress.enter(name)

    def step(self, step: int, metrics: Metrics) -> None:
        """Show a finished step."""
        labels = [label for label, _, _ in self._columns]
        cells = [
            format(metrics[name], spec) if name in metrics else "-"
            for _, name, spec in self._columns
        ]
        more = "".join(
            f"  {label} {_shown(metrics[name], spec)}"
            for label, name, spec in MORE
            if metrics.get(name)
        )
        if self._progress is None:
            pairs = zip(labels, cells, strict=True)
            text = "  ".join(f"{label} {cell}" for label, cell in pairs)
            self._line(f"step {self._position(step)}  {text}{more}  left {self._time_left(step)}")
            return
        if self._rows % ROWS_PER_HEADER == 0:
            self._line(self._row("step", labels), "bold")
        self._rows += 1
        self._line(f"{self._row(self._position(step), cells)}{more}")
        self._progress.take(metrics)
        self._progress.update(self._progress.task_ids[0], completed=step)

    def evaluation(self, step: int, accuracy: float) -> None:
        """Show the accuracy on the evaluation data after a step; step 0 is before training."""
        self.measured(step, f"accuracy {accuracy:.3f}")

    def measured(self, step: int, text: str) -> None:
        """Show the result of an evaluation after a step; step 0 is before training."""
        self._line(f"eval {self._position(step)}  {text}", "cyan")

    def note(self, text: str) -> None:
        """Show a line of text; control characters and rich markup in it have no effect."""
        self._line(printable(text))

    def show(self, renderable: RenderableType, *, folds: bool = True) -> None:
        """Show any rich renderable, such as a sample.

        With `folds=False`, lines stay whole unless the output is a terminal, so that a program or a
        search finds each path in one piece.
        """
        console = self._console
        if not folds and not console.is_terminal:
            console = Console(file=self._stream, highlight=False, width=_UNFOLDED)
        # A closed pipe, or a full disk, must not end a run.
        with suppress(OSError):
            console.print(renderable)
            self._stream.flush()

    def _line(self, text: str, style: str = "") -> None:
        if self._progress is not None:
            self.show(Text(text, style=style))
            return
        with suppress(OSError):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _position(self, step: int) -> str:
        total = str(self._total_steps)
        return f"{step:>{len(total)}}/{total}"

    def _row(self, first: str, cells: Sequence[str]) -> str:
        widths = [max(len(label), NARROWEST_CELL) for label, _, _ in self._columns]
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join((first.rjust(max(len("step"), len(self._position(0)))), *padded))

    def _time_left(self, step: int) -> str:
        """Estimate the time left from the steps after the first, which includes warm-up."""
        now = time.perf_counter()
        if self._first_step is None or step <= self._first_step[0]:
            self._first_step = (step, now)
            return "-"
        first, start = self._first_step
        seconds = (now - start) / (step - first) * (self._total_steps - step)
        return str(timedelta(seconds=round(seconds)))


def _shown(value: float, spec: str) -> str:
    """Format a number above 0; a fraction below 1 % becomes `<1%`, not `0%`."""
    return "<1%" if spec.endswith("%") and value < 0.01 else format(value, spec)
