"""The process of a tracker: it reads the metrics of a run as they are written, and hands them on.

Its standard input ends with the run, whatever ends that. A call that takes too long ends this
process by the kernel's alarm clock, whatever the library is doing.
"""

import fcntl
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mindrl.config.own_functions import named_function
from mindrl.observability.regular_files import open_regular
from mindrl.observability.terminal import printable
from mindrl.observability.units import quoted
from mindrl.tracking.job import OpenTracker, TrackerJob, TrackerState
from mindrl.tracking.libraries import LIBRARIES

logger = logging.getLogger(__name__)

FIELD = "rl_config.tracking.trackers"
_POLL_SECONDS = 0.5


def hand_on(place: str) -> None:
    """Do a job; returns when the run is over."""
    job = TrackerJob.read(Path(place))
    limit, state = _Limit(job.timeout_seconds), TrackerState()
    # One whose run was killed may still be there, for as long as its own limit.
    folder = os.open(job.folder, os.O_RDONLY)
    try:
        with limit.call():
            fcntl.flock(folder, fcntl.LOCK_EX)
            if job.goes_on:
                state = replace(TrackerState.of(job.folder), taken=0, problem=None)
            tracker = _opened(job, state)
            state.id, state.place = tracker.id, tracker.place
            state.write(job.folder)
        _hand_on(job, state, tracker, limit)
    except (Exception, SystemExit) as error:
        logger.exception("%s", job.name)
        limit.last()
        state.problem = _in_words(error)
        state.write(job.folder)
        sys.exit(1)


def _hand_on(job: TrackerJob, state: TrackerState, tracker: OpenTracker, limit: "_Limit") -> None:
    step, of_step = -1, 0
    for record in _records(Path(job.metrics), limit):
        now = int(record.pop("step"))
        step, of_step = now, of_step + 1 if now == step else 1
        # A run that goes on does steps again, to the same numbers.
        if (step, of_step) > (state.step, state.of_step):
            # What was not finite is null in the file.
            metrics = {name: value for name, value in record.items() if value is not None}
            with limit.call():
                tracker.log(step, metrics)
            state.step, state.of_step = step, of_step
        state.taken += 1
        state.write(job.folder)
    tracker.close()


def _records(path: Path, limit: "_Limit") -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that grows, until standard input has ended."""
    with open_regular(path) as file:
        is_over, rest = False, b""
        while not is_over:
            is_over = bool(select.select([sys.stdin], [], [], _POLL_SECONDS)[0])
            if is_over:
                limit.last()
            *whole, rest = (rest + file.read()).split(b"\n")
            yield from map(json.loads, whole)


def _opened(job: TrackerJob, state: TrackerState) -> OpenTracker:
    opens = named_function(FIELD, job.name, LIBRARIES, "tracker")
    return cast(OpenTracker, opens(job, state))


def _in_words(error: Exception | SystemExit) -> str:
    """Say what happened on one line, safe to show."""
    said = str(error).strip().partition("\n")[0]
    return printable(quoted(f"{type(error).__name__}: {said}").strip("'\""))


class _Limit:
    """Ends this process where a call takes too long; the last one is all that is left to do."""

    def __init__(self, seconds: int) -> None:
        self.seconds, self.is_last = seconds, False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Limit the body."""
        if not self.is_last:
            signal.alarm(self.seconds)
        yield
        if not self.is_last:
            signal.alarm(0)

    def last(self) -> None:
        """Limit the rest of the process, its end included."""
        self.is_last = True
        signal.alarm(self.seconds)
