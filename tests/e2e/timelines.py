"""What the timeline of a step has to say, beside the metrics of that step."""

from collections.abc import Sequence

import pytest
from chrome_trace import Event, Timeline, read_timeline
from program import Program

STAGES = ("rollout", "reward", "ref_log_prob", "log_prob", "values", "update_critic", "update")
SHARE = 0.02
"""Of a stage; both are one and the same time."""
CLOCKS_US = 200.0
"""Between two processes of one host that each have looked at two clocks."""


def timeline_of(run: Program, step: int) -> Timeline:
    """Read the timeline of a step, which has to be by the letter of the format, and to nest."""
    return read_timeline(run.folder / "trace" / f"step-{step}.json")


def check_step(run: Program, step: int) -> Timeline:
    """Compare the timeline of a step with its metrics."""
    timeline, metrics = timeline_of(run, step), run.steps()[step - 1]
    assert timeline.about["step"] == step
    (whole,) = timeline.named("driver", "step")
    assert seconds([whole]) == pytest.approx(metrics["seconds/step"], rel=SHARE)
    stages = [name for name in STAGES if f"seconds/{name}" in metrics]
    assert {"rollout", "update"} <= set(stages)
    for name in stages:
        found = inside(whole, timeline.named("driver", name))
        assert seconds(found) == pytest.approx(metrics[f"seconds/{name}"], rel=SHARE), name
    workers = [name for name in timeline.processes() if name != "driver"]
    for name in (key.partition("/")[2] for key in metrics if key.startswith("seconds/swap_")):
        slowest = max(seconds(inside(whole, timeline.named(each, name))) for each in workers)
        assert slowest == pytest.approx(metrics[f"seconds/{name}"], rel=SHARE), name
    for worker in workers:
        check_waits(timeline, worker)
    return timeline


def check_waits(timeline: Timeline, worker: str) -> None:
    """No call of a worker ends behind the last time that a thread of the driver waits for it."""
    waited: dict[str, float] = {}
    for (process, _), events in timeline.tracks.items():
        for event in events if process == "driver" else ():
            waited[event.name] = max(event.end, waited.get(event.name, 0.0))
    calls = outermost(timeline.tracks[worker, "main"])
    assert calls, worker
    for call in calls:
        assert call.end <= waited[f"wait for {call.name}"] + CLOCKS_US, (worker, call)


def outermost(events: Sequence[Event]) -> list[Event]:
    """Leave out what lies within others."""
    found: list[Event] = []
    for event in events:
        if not found or event.start >= found[-1].end:
            found.append(event)
    return found


def inside(whole: Event, events: Sequence[Event]) -> list[Event]:
    """Keep what lies within an event, on the clock of any process."""
    return [
        event
        for event in events
        if whole.start - CLOCKS_US <= event.start and event.end <= whole.end + CLOCKS_US
    ]


def seconds(events: Sequence[Event]) -> float:
    """Add events up."""
    return sum(event.end - event.start for event in events) / 1e6
