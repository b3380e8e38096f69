"""How long a call of the workers may take: by those before it."""

import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

_FACTOR = 5
"""Times the longest call so far."""

CallKind = tuple[str, int, int]
"""A method, how many ranks are asked, and how many rows all of them together are given."""


@dataclass(kw_only=True)
class Limit:
    """How long the workers may take, counted from when it is made."""

    seconds: float
    said: str
    """The seconds, and where they come from."""
    ticks: int | None = None
    """With no more of them behind it a call is slow, and no more than that. None: not asked."""

    def __post_init__(self) -> None:
        """Begin to count."""
        self.began = time.monotonic()

    def passed(self) -> float:
        """Return the seconds so far."""
        return time.monotonic() - self.began

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.seconds - self.passed())

    def is_over(self, ticks: int) -> bool:
        """Say whether a call with so many ticks behind it has taken too long."""
        return not self.left() and (self.ticks is None or ticks > self.ticks)


@dataclass(kw_only=True)
class CallLimits:
    """Remembers the calls of a run; worth keeping when its workers are started anew."""

    first_seconds: int
    """For the first call of a kind: of `rl_config.worker_call_timeout_seconds`."""
    least_seconds: int
    """For every other: of `rl_config.heartbeat_timeout_seconds`."""
    longest: dict[CallKind, tuple[float, int]] = field(default_factory=dict)
    """Seconds, and ticks of the busiest worker, of the longest call and of the busiest."""

    def of(self, kind: CallKind) -> Limit:
        """Return the limit of a call that begins now."""
        if kind not in self.longest:
            said = f"{self.first_seconds} s (rl_config.worker_call_timeout_seconds)"
            return Limit(seconds=self.first_seconds, said=said)
        seconds, ticks = self.longest[kind]
        limit = max(self.least_seconds, _FACTOR * seconds)
        said = f"{limit:.0f} s, the longest such call so far having taken {seconds:.1f} s"
        return Limit(seconds=limit, said=said, ticks=_FACTOR * ticks)

    def note(self, kind: CallKind, seconds: float, ticks: int) -> None:
        """Take note of a call that was answered."""
        before = self.longest.get(kind, (0.0, 0))
        self.longest[kind] = max(before[0], seconds), max(before[1], ticks)


def kind_of(method: str, arguments: Sequence[tuple[Any, ...]]) -> CallKind:
    """Tell calls apart that differ in length for a reason, such as a rollout and an evaluation.

    There is a tuple of arguments for each rank; the first of them has the rows, if there are any.
    """
    first = (given[0] for given in arguments if given)
    return method, len(arguments), sum(len(each) for each in first if isinstance(each, Sized))
