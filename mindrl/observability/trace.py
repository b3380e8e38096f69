"""What a process does, moment by moment, while that is recorded."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

PHASE = "phase"
"""The track of a process that says which phase has its device."""
_THINNED_FROM = 10
"""In powers of two: spans of one name in one recording of which all are kept."""
_NOTHING = nullcontext()


class Span(NamedTuple):
    """Something that was done. On its way it is a bare tuple, which costs a fraction."""

    track: str
    """The thread that did it, or another row of the process."""
    name: str
    start: int
    """Nanoseconds since the epoch."""
    end: int | None
    """None: until the next of its track."""
    about: Mapping[str, object] | None
    """What else is to be known of it."""


class TracePart(NamedTuple):
    """What a process recorded for somebody else."""

    start: int
    end: int
    spans: list[tuple[Any, ...]]
    """Of a `Span` each."""


@dataclass
class ProcessSpans:
    """What is known of one process, on its own clock."""

    spans: list[tuple[Any, ...]] = field(default_factory=list)
    earliest: int | None = None
    """The least ns that its clock is to be put forward by: nothing begins before it is asked."""
    latest: int | None = None
    """And the most: an answer is not there before it is given."""

    @property
    def shift(self) -> int:
        """Return by how much its clock is wrong at the least; 0 on the asker's own host."""
        if self.earliest is None or self.latest is None:
            return 0
        return max(self.earliest, min(0, self.latest))


class Trace:
    """The recorder of a process: off, until it is told which step to record.

    Any thread may add to it. While it is off, all that it costs is to look whether it is.
    """

    def __init__(self) -> None:
        """Be off."""
        self.step: int | None = None
        """That is recorded; None while nothing is."""
        self.began = 0
        self.spans: list[tuple[Any, ...]] = []
        self.others: defaultdict[str, ProcessSpans] = defaultdict(ProcessSpans)
        """What other processes recorded for this one, by their names."""
        self._counts: dict[str, int] = {}
        self._to_epoch = _epoch_of_clock()

    def now(self) -> int:
        """Return nanoseconds since the epoch, by a clock that never goes back."""
        return time.perf_counter_ns() + self._to_epoch

    def begin(self, step: int | None) -> None:
        """Record from now on, and forget what was recorded; None records nothing."""
        self.spans, self.others = [], defaultdict(ProcessSpans)
        self._counts.clear()
        if step is not None:
            # Anew: one clock is corrected while the other runs on.
            self._to_epoch = _epoch_of_clock()
        self.began, self.step = self.now(), step

    def end(self) -> TracePart | None:
        """Record no longer; returns what was recorded here, None where nothing was to be."""
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
        """Record what this thread did between two times of `time.perf_counter_ns`.

        Of thousands of one name fewer and fewer are kept, evenly over them: behind 1024 every
        second, behind 2048 every fourth, and so on.
        """
        if self.step is None:
            return
        self._counts[name] = count = self._counts.get(name, 0) + 1
        if count >> _THINNED_FROM and count % (1 << count.bit_length() - _THINNED_FROM):
            return
        thread, shift = threading.current_thread().name, self._to_epoch
        self.spans.append((thread, name, start + shift, end + shift, about))

    def mark(self, name: str) -> None:
        """Record that another phase has the device from now on."""
        if self.step is not None:
            self.spans.append((PHASE, name, self.now(), None, None))

    def take(self, process: str, found: TracePart | None, *, asked: int) -> None:
        """Take what another process recorded in a call that was `asked` of it, and is answered."""
        if self.step is None or found is None:
            return
        its, now = self.others[process], self.now()
        its.spans += found.spans
        least, most = asked - found.start, now - found.end
        its.earliest = least if its.earliest is None else max(its.earliest, least)
        its.latest = most if its.latest is None else min(its.latest, most)


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
    """Return what turns `time.perf_counter_ns` into nanoseconds since the epoch."""
    # Whoever is stopped between the two looks finds another difference.
    looks = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(5)]
    first, epoch, last = min(looks, key=lambda look: look[2] - look[0])
    return epoch - (first + last) // 2


TRACE = Trace()
"""Of this process."""
span = TRACE.span
