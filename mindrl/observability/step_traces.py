"""Timelines of steps in the format of Chrome's traces, which Perfetto opens too."""

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
    """Records the first steps of a run, those that a range names, and the next one on request."""

    def __init__(
        self, folder: Path, tell: Callable[[str], None], *, first: int, also: range = range(0)
    ) -> None:
        """Take the folder for the files, and how many steps at the start are recorded.

        `tell` takes a line about each that was asked for.
        """
        self.folder, self.tell, self.first, self.also = folder, tell, first, also
        self.asked = False

    def ask(self) -> None:
        """Have the next step that begins recorded."""
        self.asked = True

    def forget_later(self, step: int) -> None:
        """Remove the timelines of steps behind one, which are made anew.

        Raises:
            OutputError: One cannot be removed.
        """
        with output_errors(self.folder):
            for path in self.folder.glob("step-*.json"):
                if int(path.stem.removeprefix("step-")) > step:
                    path.unlink()

    def steps(
        self, keep: Callable[[object, Callable[[], None]], object], steps: Iterable[int]
    ) -> Iterator[int]:
        """Pass steps on, and record what is done between one and the next; `keep` writes it."""
        for step in steps:
            was_asked, self.asked = self.asked, False
            is_recorded = was_asked or step <= self.first or step in self.also
            TRACE.begin(step if is_recorded else None)
            yield step
            if (found := TRACE.end()) is not None:
                record = trace_record(step, found, TRACE.others)
                keep(self, partial(self._write, step, record, was_asked=was_asked))

    def _write(self, step: int, record: Mapping[str, object], *, was_asked: bool) -> None:
        path = self.folder / f"step-{step}.json"
        with output_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        # The next step waits for this, and a busy disk takes longer than all spans of a step.
        replace_file(path, json.dumps(record).encode("ascii"), waits=False)
        if was_asked:
            self.tell(f"the timeline of step {step} is in {path}")


def trace_record(
    step: int, found: TracePart, others: Mapping[str, ProcessSpans]
) -> dict[str, object]:
    """Put together what the driver and other processes recorded of a step.

    Times count from where the driver began it, in microseconds.
    """
    # Worker 10 behind worker 9, replicas behind workers.
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
    """Let each that has no end last until another follows it."""
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
