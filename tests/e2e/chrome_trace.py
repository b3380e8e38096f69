"""Reads a timeline by the letter of Chrome's trace format, and refuses what is not in it."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

_METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int}
_COMPLETE = {"name": str, "cat": str, "pid": int, "tid": int, "args": dict}
_ROUNDING = 0.002
"""Microseconds: a nanosecond for each of two times that were written as fractions."""


class Event(NamedTuple):
    """A complete event, in microseconds."""

    name: str
    start: float
    end: float
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Timeline:
    """The events of a file, in the order of their beginnings."""

    tracks: Mapping[tuple[str, str], Sequence[Event]]
    """By the names of the process and of the thread."""
    about: Mapping[str, Any]

    def processes(self) -> list[str]:
        """Return their names, in order."""
        return list(dict.fromkeys(process for process, _ in self.tracks))

    def named(self, process: str, name: str, track: str = "main") -> list[Event]:
        """Return the events of a name."""
        return [event for event in self.tracks.get((process, track), ()) if event.name == name]

    def seconds(self, process: str, name: str, track: str = "main") -> float:
        """Add up the events of a name."""
        return sum(each.end - each.start for each in self.named(process, name, track)) / 1e6


def read_timeline(path: Path) -> Timeline:
    """Read a file strictly; an AssertionError says what is wrong with it."""

    def no_constant(found: str) -> NoReturn:
        raise AssertionError(f"{found} is no JSON")

    whole = json.loads(path.read_text("ascii"), parse_constant=no_constant)
    assert set(whole) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert whole["displayTimeUnit"] in {"ms", "ns"}
    named: dict[str, dict[Any, str]] = {"process_name": {}, "thread_name": {}}
    events: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for each in whole["traceEvents"]:
        if each["ph"] == "M":
            _metadata(each, named)
        else:
            events[each["pid"], each["tid"]].append(_complete(each))
    threads, processes = named["thread_name"], named["process_name"]
    assert {pid for pid, _ in threads} == processes.keys(), "a process without a name, or a thread"
    assert events.keys() <= threads.keys(), "events of a thread without a name"
    tracks = {}
    for (pid, tid), name in threads.items():
        inside = sorted(events[pid, tid], key=lambda event: (event.start, -event.end))
        _nests(inside)
        assert (processes[pid], name) not in tracks, f"two tracks {name!r} of {processes[pid]}"
        tracks[processes[pid], name] = inside
    return Timeline(tracks, whole["otherData"])


def _metadata(event: Mapping[str, Any], named: Mapping[str, dict[Any, str]]) -> None:
    assert set(event) == {"ph", "name", "pid", "tid", "args"}, event
    kind = _METADATA[event["name"]]
    (value,) = event["args"].values()
    assert isinstance(value, kind), event
    assert all(isinstance(event[key], int) for key in ("pid", "tid")), event
    if event["name"] in named:
        place = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
        assert place not in named[event["name"]], f"{event} names {place} again"
        named[event["name"]][place] = value


def _complete(event: Mapping[str, Any]) -> Event:
    assert event["ph"] == "X", f"{event} is no complete event"
    assert set(event) == {*_COMPLETE, "ph", "ts", "dur"}, event
    assert all(type(event[key]) is kind for key, kind in _COMPLETE.items()), event
    start, lasts = event["ts"], event["dur"]
    assert isfinite(start), event
    assert isfinite(lasts), event
    assert min(start, lasts) >= 0, event
    return Event(event["name"], start, start + lasts, event["args"])


def _nests(events: Sequence[Event]) -> None:
    around: list[Event] = []
    for event in events:
        while around and around[-1].end <= event.start + _ROUNDING:
            around.pop()
        if around:
            assert event.end <= around[-1].end + _ROUNDING, f"{event} ends behind {around[-1]}"
        around.append(event)
