"""Time limits of worker calls, derived from earlier calls."""

import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

_FACTOR = 5
"""Multiple of the longest call so far."""

CallKind = tuple[str, int, int]
"""A method, the number of ranks, and the total number of rows."""


@dataclass(kw_only=True)
class Limit:
    """A time limit that starts when it is created."""

    seconds: float
    description: str
    """The seconds, and their source."""
    ticks: int | None = None
    """Minimum number of progress ticks above which a late call has taken too long; a late call with
    fewer is only slow. None: no condition."""

    def __post_init__(self) -> None:
        """Start the clock."""
        self.began = time.monotonic()

    def passed(self) -> float:
        """Return the elapsed seconds."""
        return time.monotonic() - self.began

    def left(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self.seconds - self.passed())

    def is_over(self, ticks: int) -> bool:
        """Return whether a call with this many ticks has taken too long."""
        return not self.left() and (self.ticks is None or ticks > self.ticks)


@dataclass(kw_only=True)
class CallLimits:
    """Durations of a run's calls; reuse it when workers are restarted."""

    first_seconds: int
    """Limit of the first call of a kind: `rl_config.worker_call_timeout_seconds`."""
    least_seconds: int
    """Minimum limit of later calls: `rl_config.heartbeat_timeout_seconds`."""
    longest: dict[CallKind, tuple[float, int]] = field(default_factory=dict)
    """Maximum seconds, and maximum ticks of the busiest worker, by kind of call."""

    def of(self, kind: CallKind) -> Limit:
        """Return the limit of a call that starts now."""
        if kind not in self.longest:
            description = f"{self.first_seconds} s (rl_config.worker_call_timeout_seconds)"
            return Limit(seconds=self.first_seconds, description=description)
        seconds, ticks = self.longest[kind]
        limit = max(self.least_seconds, _FACTOR * seconds)
        description = f"{limit:.0f} s; the longest such call so far took {seconds:.1f} s"
        return Limit(seconds=limit, description=description, ticks=_FACTOR * ticks)

    def note(self, kind: CallKind, seconds: float, ticks: int) -> None:
        """Record a call that was answered."""
        before = self.longest.get(kind, (0.0, 0))
        self.longest[kind] = max(before[0], seconds), max(before[1], ticks)


def kind_of(method: str, arguments: Sequence[tuple[Any, ...]]) -> CallKind:
    """Distinguish calls with different expected durations, such as rollout and evaluation.

    There is a tuple of arguments for each rank; the first argument has the rows, if any.
    """
    first = (given[0] for given in arguments if given)
    return method, len(arguments), sum(len(each) for each in first if isinstance(each, Sized))
