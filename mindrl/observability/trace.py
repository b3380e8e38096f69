"""Recorder of the timed spans of a process."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, NamedTuple

PHASE = "phase"
"""Track with the phase that uses the device."""
_THINNED_FROM = 10
"""log2 of the number of spans of one name up to which all are kept."""
MOST_SPANS = 1 << 17
"""Maximum number of spans of other processes that a process holds for a step, about 50 MB."""
_NOTHING = nullcontext()


class Span(NamedTuple):
    """A timed span. It is sent as a bare tuple, which costs less."""

    track: str
    """Thread of the span, or another row of the process."""
    name: str
    start: int
    """Nanoseconds since the epoch."""
    end: int | None
    """None: until the next span of its track."""
    about: Mapping[str, object] | None
    """Further attributes."""


class TracePart(NamedTuple):
    """Spans that a process recorded for another one."""

    start: int
    end: int
    spans: list[tuple[Any, ...]]
    """Fields of a `Span` each."""


@dataclass
class ProcessSpans:
    """Spans of one process on its own clock, and bounds of its clock's offset."""

    spans: list[tuple[Any, ...]] = field(default_factory=list)
    earliest: int | None = None
    """Lower bound in ns: its work starts after the request."""
    latest: int | None = None
    """Upper bound in ns: its work ends before the answer."""

    @property
    def shift(self) -> int:
        """Smallest clock correction within the bounds in ns; 0 on the caller's own host."""
        if self.earliest is None or self.latest is None:
            return 0
        return max(self.earliest, min(0, self.latest))

    def drop_shortest(self) -> int:
        """Drop the shorter half of the spans; return its number. Phases are dropped last."""
        spans = [*map(Span._make, self.spans)]
        lengths = [inf if each.end is None else each.end - each.start for each in spans]
        order = sorted(range(len(spans)), key=lengths.__getitem__)
        kept = sorted(order[len(order) // 2 :])
        self.spans = [self.spans[place] for place in kept]
        return len(order) - len(kept)


class Trace:
    """Records spans of a process; off until `begin` is called with a step.

    Any thread may add spans. While off, the cost is one check.
    """

    def __init__(self) -> None:
        """Start switched off."""
        self.step: int | None = None
        """The step being recorded; None while off."""
        self.began = 0
        self.spans: list[tuple[Any, ...]] = []
        self.others: defaultdict[str, ProcessSpans] = defaultdict(ProcessSpans)
        """Spans that other processes recorded for this one, by name."""
        self.left_out = 0
        """Spans of other processes that were dropped, the shortest of the busiest ones."""
        self._counts: dict[str, int] = {}
        self._to_epoch = _epoch_of_clock()

    def now(self) -> int:
        """Return nanoseconds since the epoch, by a monotonic clock."""
        return time.perf_counter_ns() + self._to_epoch

    def begin(self, step: int | None) -> None:
        """Discard all spans and start recording; None records nothing."""
        self.spans, self.others, self.left_out = [], defaultdict(ProcessSpans), 0
        self._counts.clear()
        if step is not None:
            # Again for each step: the epoch clock is adjusted, the monotonic one is not.
            self._to_epoch = _epoch_of_clock()
        self.began, self.step = self.now(), step

    def end(self) -> TracePart | None:
        """Stop recording; return the spans of this process, None if nothing was recorded."""
        if self.step is None:
            return None
        self.step = None
        return TracePart(self.began, self.now(), self.spans)

    def span(self, name: str, **about: object) -> AbstractContextManager[None]:
        """Record the body of a `with` statement."""
        return _NOTHING if self.step is None else _OpenSpan(self, name, about or None)

    def add(
        self, name: str, start: int, end: int, about: Mapping[str, object] | None = None
    ) -> None:
        """Record a span of this thread between two times of `time.perf_counter_ns`.

        Of many spans of one name only some are kept, evenly spaced: after 1024 every second, after
        2048 every fourth, and so on.
        """
        if self.step is None:
            return
        self._counts[name] = count = self._counts.get(name, 0) + 1
        if count >> _THINNED_FROM and count % (1 << count.bit_length() - _THINNED_FROM):
            return
        thread, shift = threading.current_thread().name, self._to_epoch
        self.spans.append((thread, name, start + shift, end + shift, about))

    def mark(self, name: str) -> None:
        """Record that another phase uses the device from now on."""
        if self.step is not None:
            self.spans.append((PHASE, name, self.now(), None, None))

    def take(self, process: str, found: TracePart | None, *, called_at: int) -> None:
        """Add the spans of another process, recorded in a call made at `called_at`."""
        if self.step is None or found is None:
            return
        its, now = self.others[process], self.now()
        its.spans += found.spans
        least, most = called_at - found.start, now - found.end
        its.earliest = least if its.earliest is None else max(its.earliest, least)
        its.latest = most if its.latest is None else min(its.latest, most)
        while sum(len(each.spans) for each in self.others.values()) > MOST_SPANS:
            busiest = max(self.others.values(), key=lambda each: len(each.spans))
            self.left_out += busiest.drop_shortest()


class _OpenSpan:
    __slots__ = ("about", "name", "start", "trace")

    def __init__(self, trace: Trace, name: str, about: dict[str, object] | None) -> None:
        self.trace, self.name, self.about = trace, name, about

    def __enter__(self) -> None:
        self.start = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.trace.add(self.name, self.start, time.perf_counter_ns(), self.about)


def _epoch_of_clock() -> int:
    """Return the offset from `time.perf_counter_ns` to nanoseconds since the epoch."""
    # A pause between the two readings distorts the offset; the shortest interval is used.
    looks = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(5)]
    first, epoch, last = min(looks, key=lambda look: look[2] - look[0])
    return epoch - (first + last) // 2


TRACE = Trace()
"""The recorder of this process."""
span = TRACE.span
