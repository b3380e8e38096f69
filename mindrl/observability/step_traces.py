"""Timelines of steps in Chrome's trace format, which Perfetto opens too."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mindrl.observability.output_files import output_errors, replace_file
from mindrl.observability.trace import PHASE, TRACE, ProcessSpans, Span, TracePart

DRIVER = "driver"
_MAIN = "MainThread"


class StepTraces:
    """Records the first steps of a run, those of a range, and the next one on request."""

    def __init__(
        self, folder: Path, notify: Callable[[str], None], *, first: int, also: range = range(0)
    ) -> None:
        """Set the folder of the files, and the number of steps recorded at the start.

        `notify` is called with a line about each requested recording.
        """
        self.folder, self.notify, self.first, self.also = folder, notify, first, also
        self.requested = False

    def request(self) -> None:
        """Request a recording of the next step that begins."""
        self.requested = True

    def forget_later(self, step: int) -> None:
        """Remove the timelines of steps after `step`, which are repeated.

        Raises:
            OutputError: One cannot be removed.
        """
        with output_errors(self.folder):
            for path in self.folder.glob("step-*.json"):
                number = path.stem.removeprefix("step-")
                # Other files, such as a copy, are the user's.
                if number.isdecimal() and int(number) > step:
                    path.unlink()

    def steps(
        self, keep: Callable[[object, Callable[[], None]], object], steps: Iterable[int]
    ) -> Iterator[int]:
        """Yield the steps, and record the time between one and the next; `keep` writes it."""
        for step in steps:
            was_requested, self.requested = self.requested, False
            is_recorded = was_requested or step <= self.first or step in self.also
            TRACE.begin(step if is_recorded else None)
            yield step
            if (found := TRACE.end()) is not None:
                record = trace_record(step, found, TRACE.others, left_out=TRACE.left_out)
                keep(self, partial(self._write, step, record, was_requested=was_requested))

    def _write(self, step: int, record: Mapping[str, object], *, was_requested: bool) -> None:
        path = self.folder / f"step-{step}.json"
        with output_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        # The next step waits for this, and a busy disk takes longer than all spans of a step.
        replace_file(path, json.dumps(record).encode("ascii"), waits=False)
        if was_requested:
            self.notify(f"timeline of step {step}: {path}")


def trace_record(
    step: int, found: TracePart, others: Mapping[str, ProcessSpans], *, left_out: int = 0
) -> dict[str, object]:
    """Combine the spans that the driver and other processes recorded for a step.

    Times are in microseconds from the driver's start of the step.
    """
    # Worker 10 after worker 9, replicas after workers.
    rest = sorted(others.items(), key=lambda each: (len(each[0]), each[0]))
    processes = {DRIVER: ProcessSpans(spans=found.spans), **dict(rest)}
    events: list[dict[str, Any]] = []
    for pid, (name, process) in enumerate(processes.items()):
        events += _events(pid, name, process, found)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "step": step,
            "begun_ns": found.start,
            "left_out_spans": left_out,
            "clock_shift_ns": {name: process.shift for name, process in processes.items()},
        },
    }


def _events(
    pid: int, name: str, process: ProcessSpans, step: TracePart
) -> Iterator[dict[str, Any]]:
    begun, shift = step.start, process.shift
    yield _named("process_name", pid, 0, name)
    order = {"sort_index": pid}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": order}
    tracks: dict[str, list[Span]] = {_MAIN: []}
    for each in map(Span._make, process.spans):
        tracks.setdefault(each.track, []).append(each)
    for tid, (track, spans) in enumerate(tracks.items()):
        yield _named("thread_name", pid, tid, "main" if track == _MAIN else track)
        for each in _ended(spans, step.end - shift):
            assert each.end is not None, "it has ended"
            yield {
                "ph": "X",
                "cat": PHASE if track == PHASE else name.partition("-")[0],
                "name": each.name,
                "pid": pid,
                "tid": tid,
                "ts": (each.start + shift - begun) / 1000,
                "dur": (each.end - each.start) / 1000,
                "args": dict(each.about or {}),
            }


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _ended(spans: list[Span], end: int) -> Iterator[Span]:
    """Extend each span without an end to the next one of another name."""
    open_span: Span | None = None
    for each in spans:
        if each.end is not None:
            yield each
            continue
        if open_span is not None and open_span.name != each.name:
            yield open_span._replace(end=each.start)
            open_span = each
        open_span = open_span or each
    if open_span is not None:
        yield open_span._replace(end=max(end, open_span.start))
