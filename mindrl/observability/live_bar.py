"""Live bar below the lines of a run on a terminal: progress, stage, rewards, memory."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mindrl.observability.metrics import Metrics
from mindrl.observability.units import gib_text

_BLOCKS = "▁▂▃▄▅▆▇█"
_NARROWEST, _WIDEST = 4, 40
"""Minimum and maximum width of a sparkline in columns."""
_REWARD = "reward/mean"
_SIDES = ("memory/", "memory/rollout_")
"""Prefixes of the memory of workers that train, and of those that only roll out."""


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, scaled from their minimum to maximum; non-finite ones as gaps."""
    finite = [value for value in values if math.isfinite(value)]
    least = min(finite, default=0.0)
    span = max(finite, default=0.0) - least

    def block(value: float) -> str:
        if not math.isfinite(value):
            return " "
        # Equal values are drawn at half height.
        share = (value - least) / span if span else 0.5
        return _BLOCKS[round(share * (len(_BLOCKS) - 1))]

    return "".join(map(block, values))


class LiveBar(Progress):
    """A progress bar with the time left, and below it a line about the newest step."""

    def __init__(self, console: Console) -> None:
        """Build the layout; nothing is drawn before `start`."""
        self.stage, self.since = "start", time.monotonic()
        self.rewards: deque[float] = deque(maxlen=_WIDEST)
        self.newest: Metrics = {}
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            # By default rich forgets steps older than 30 s, but a step may take minutes.
            speed_estimate_period=float("inf"),
            refresh_per_second=2,
        )

    def enter(self, stage: str) -> None:
        """Set the stage that is shown; empty between two stages."""
        self.stage, self.since = stage, time.monotonic()

    def take(self, metrics: Metrics) -> None:
        """Update the line with the metrics of a step."""
        self.newest = metrics
        if _REWARD in metrics:
            self.rewards.append(metrics[_REWARD])

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar and the line below it."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self._line(), no_wrap=True, overflow="ellipsis", style="dim")

    def _line(self) -> str:
        spent = timedelta(seconds=int(time.monotonic() - self.since))
        parts = [f"{self.stage} {spent}"] if self.stage else []
        rest = self._workers()
        if self.rewards:
            values = [*self.rewards]
            value = f"{values[-1]:.3f}"
            room = self.console.width - len("  ".join([*parts, f"reward  {value}", *rest]))
            shown = values[-min(max(room, _NARROWEST), _WIDEST) :]
            drawn = "" if self.console.options.ascii_only else f"{sparkline(shown)} "
            parts.append(f"reward {drawn}{value}")
        return "  ".join([*parts, *rest])

    def _workers(self) -> list[str]:
        """Return the number of workers, the maximum device memory, and the total host memory."""
        newest = self.newest
        device = [newest.get(f"{side}device_peak_bytes_max", 0.0) for side in _SIDES]
        workers = [newest.get(f"{side}workers", 0.0) for side in _SIDES]
        host = [
            count * newest.get(f"{side}rss_bytes_mean", 0.0)
            for side, count in zip(_SIDES, workers, strict=True)
        ]
        if not (count := int(sum(workers))):
            return []
        parts = [f"{count} worker{'s' if count > 1 else ''}"]
        parts += [f"device {gib_text(int(max(device)))}"] if any(device) else []
        return [*parts, f"host {gib_text(int(sum(host)))}"]
