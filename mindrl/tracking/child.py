"""Process of a tracker: it reads the metrics of a run as they are written, and forwards them.

Its standard input ends with the run, however that ends; the run's end status is written there. A
call that takes too long ends this process by the kernel's alarm signal, in any state of the
library.
"""

import fcntl
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mindrl.config.own_functions import named_function
from mindrl.observability.output_files import step_record
from mindrl.observability.regular_files import open_regular
from mindrl.observability.terminal import printable
from mindrl.observability.units import quoted
from mindrl.report.live_page import PAGE as REPORT
from mindrl.tracking.job import KILLED, OpenTracker, TrackerJob, TrackerState
from mindrl.tracking.libraries import LIBRARIES, LibraryTracker
from mindrl.tracking.sample_tables import SampleTables

logger = logging.getLogger(__name__)

FIELD = "rl_config.tracking.trackers"
_POLL_SECONDS = 0.5


def hand_on(place: str) -> None:
    """Run a job; return when the run is over."""
    job = TrackerJob.read(Path(place))
    limit, state = _Limit(job.timeout_seconds), TrackerState()
    tracker: OpenTracker | None = None
    # The tracker of a killed run may still be running, until its own time limit.
    folder = os.open(job.folder, os.O_RDONLY)
    try:
        with limit.call():
            fcntl.flock(folder, fcntl.LOCK_EX)
            if job.goes_on:
                state = replace(TrackerState.of(job.folder), taken=0, problem=None, run_status=None)
            tracker = _opened(job, state)
            state.id, state.place = tracker.id, tracker.place
            state.write(job.folder)
        _Handing(job, state, tracker, limit).all()
    except (Exception, SystemExit) as error:
        logger.exception("%s", job.name)
        limit.last()
        state.problem = _in_words(error)
        state.write(job.folder)
        if isinstance(tracker, LibraryTracker) and state.run_status is None:
            # The library would record the run as finished when this process ends.
            state.run_status = KILLED
            with suppress(Exception):
                tracker.close()
        sys.exit(1)


class _Handing:
    """Forwards the records of a run as they are written, and ends the tracker with the run."""

    def __init__(
        self, job: TrackerJob, state: TrackerState, tracker: OpenTracker, limit: "_Limit"
    ) -> None:
        self.job, self.state, self.tracker, self.limit = job, state, tracker, limit
        self.step, self.of_step = -1, 0
        """Position of the newest record."""
        self.for_texts: LibraryTracker | None = None
        if job.sample_rows and isinstance(tracker, LibraryTracker):
            self.for_texts = tracker
        self.samples = SampleTables(
            job.run_folder,
            most_rows=job.sample_rows,
            interval=job.sample_interval,
            sent=state.tables,
        )

    def all(self) -> None:
        """Return when the run is over and the tracker has ended."""
        for records in _records(Path(self.job.metrics), self.limit):
            for record in records:
                self._metrics(record)
            if self.for_texts is not None:
                self._tables(self.for_texts)
        # If the run was killed, nothing is written there.
        self.state.run_status = sys.stdin.read().strip() or KILLED
        self.state.write(self.job.folder)
        report = self.job.run_folder / REPORT
        try:
            if self.for_texts is not None and report.is_file():
                self.for_texts.report(report)
        finally:
            self.tracker.close()

    def _metrics(self, record: dict[str, Any]) -> None:
        if not record:
            self.state.taken += 1
            return
        state, now = self.state, int(record.pop("step"))
        self.step, self.of_step = now, self.of_step + 1 if now == self.step else 1
        # A resumed run repeats steps, with the same numbers.
        if (self.step, self.of_step) > (state.step, state.of_step):
            # Non-finite values are null in the file.
            metrics = {name: value for name, value in record.items() if value is not None}
            with self.limit.call():
                self.tracker.log(self.step, metrics)
            state.step, state.of_step = self.step, self.of_step
        state.taken += 1
        state.write(self.job.folder)

    def _tables(self, tracker: LibraryTracker) -> None:
        for table in self.samples.found(is_over=self.limit.is_last):
            with self.limit.call():
                tracker.table(table)
            self.state.tables[table.kind] = table.step
            self.state.write(self.job.folder)


def _records(path: Path, limit: "_Limit") -> Iterator[list[dict[str, Any]]]:
    """Yield the new lines of a file at intervals, until standard input has ended."""
    with open_regular(path) as file:
        is_over, rest = False, b""
        while not is_over:
            is_over = bool(select.select([sys.stdin], [], [], _POLL_SECONDS)[0])
            if is_over:
                limit.last()
            *whole, rest = (rest + file.read()).split(b"\n")
            yield [*map(_record, whole)]


def _record(line: bytes) -> dict[str, Any]:
    """Return a record; an empty one for a damaged line, which is counted but not forwarded."""
    if (record := step_record(line)) is None:
        logger.warning("no record with an integer step: %.200r", line)
        return {}
    return record


def _opened(job: TrackerJob, state: TrackerState) -> OpenTracker:
    opens = named_function(FIELD, job.name, LIBRARIES, "tracker")
    return cast(OpenTracker, opens(job, state))


def _in_words(error: Exception | SystemExit) -> str:
    """Return an error on one line, safe to show."""
    said = str(error).strip().partition("\n")[0]
    return printable(quoted(f"{type(error).__name__}: {said}").strip("'\""))


class _Limit:
    """Ends this process if a call takes too long; after `last`, one limit covers all the rest."""

    def __init__(self, seconds: int) -> None:
        self.seconds, self.is_last = seconds, False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Limit the duration of the body."""
        if not self.is_last:
            signal.alarm(self.seconds)
        yield
        if not self.is_last:
            signal.alarm(0)

    def last(self) -> None:
        """Limit the rest of the process, including its exit."""
        self.is_last = True
        signal.alarm(self.seconds)
