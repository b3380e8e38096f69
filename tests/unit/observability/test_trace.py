"""What a process records of itself, and the file that is made of what several have recorded."""

import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chrome_trace import Timeline, read_timeline

from mindrl.errors import OutputError
from mindrl.observability.step_traces import StepTraces, trace_record
from mindrl.observability.timing import StageTimer
from mindrl.observability.trace import MOST_SPANS, TRACE, ProcessSpans, Span, Trace, TracePart

MS = 1_000_000


def written(
    folder: Path, found: TracePart, others: dict[str, ProcessSpans] | None = None
) -> Timeline:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace_record(7, found, others or {})))
    return read_timeline(path)


def at_once(_place: object, write: Callable[[], None]) -> None:
    write()


def test_a_recorder_that_is_off_keeps_nothing_and_hands_out_one_and_the_same_nothing() -> None:
    trace = Trace()
    with trace.span("update") as nothing:
        trace.mark("train")
        trace.add("offload", 1, 2)
    assert nothing is None
    assert trace.span("update") is trace.span("other", rows=3)
    assert trace.spans == []
    assert trace.end() is None


def test_spans_nest_as_they_were_and_keep_what_is_said_of_them(tmp_path: Path) -> None:
    trace = Trace()
    trace.begin(7)
    with trace.span("update"):
        time.sleep(0.002)
        with trace.span("forward", rows=3):
            time.sleep(0.002)
    found = trace.end()
    assert found is not None
    outer, inner = written(tmp_path, found).tracks["driver", "main"]
    assert (outer.name, inner.name, inner.args) == ("update", "forward", {"rows": 3})
    # sleep never returns early.
    assert outer.start + 2000 <= inner.start < inner.start + 2000 <= inner.end <= outer.end


def test_a_stage_of_the_metrics_is_the_same_time_in_the_trace(tmp_path: Path) -> None:
    timer = StageTimer()
    TRACE.begin(7)
    for _ in range(2):
        with timer("rollout"):
            time.sleep(0.002)
    found = TRACE.end()
    assert found is not None
    seconds = written(tmp_path, found).seconds("driver", "rollout")
    assert timer.flush()["seconds/rollout"] == pytest.approx(seconds, abs=1e-8)


def test_each_thread_has_a_track_of_its_own(tmp_path: Path) -> None:
    trace = Trace()
    trace.begin(7)

    def rate() -> None:
        with trace.span("reward call"):
            time.sleep(0.002)

    with trace.span("update"):
        thread = threading.Thread(target=rate, name="rewards_0")
        thread.start()
        thread.join()
    found = trace.end()
    assert found is not None
    timeline = written(tmp_path, found)
    assert [event.name for event in timeline.tracks["driver", "rewards_0"]] == ["reward call"]
    assert [event.name for event in timeline.tracks["driver", "main"]] == ["update"]


def test_a_phase_lasts_until_the_next_and_the_last_one_until_the_step_ends(tmp_path: Path) -> None:
    spans = [
        Span("phase", name, start * MS, None, {})
        for name, start in [
            ("swap to rollout", 10),
            ("rollout", 12),
            ("rollout", 15),
            ("train", 20),
        ]
    ]
    timeline = written(tmp_path, TracePart(5 * MS, 30 * MS, spans))
    phases = timeline.tracks["driver", "phase"]
    assert [(event.name, event.start, event.end) for event in phases] == [
        ("swap to rollout", 5000, 7000),
        ("rollout", 7000, 15000),
        ("train", 15000, 25000),
    ]


def test_of_5000_engine_steps_1024_are_kept_and_then_ever_fewer_to_the_last() -> None:
    trace = Trace()
    trace.begin(7)
    for index in range(5000):
        trace.add("engine step", index, index + 1)
    trace.add("update", 0, 5000)
    kept = [Span._make(each) for each in trace.spans]
    first = kept[0].start
    assert kept[-1].name == "update"
    kept = [each.start - first for each in kept if each.name == "engine step"]
    # All of 1 to 1023, then every second up to 2047, every fourth up to 4095, every eighth.
    assert len(kept) == 1023 + 512 + 512 + 114
    assert kept[:1023] == [*range(1023)]
    assert kept[-1] == 4999


def recorded(begins: int, ends: int) -> TracePart:
    return TracePart(
        begins * MS, ends * MS, [Span("MainThread", "update", begins * MS, ends * MS, {})]
    )


def test_the_clock_of_the_same_host_is_left_alone() -> None:
    process = ProcessSpans(earliest=-2 * MS, latest=3 * MS)
    assert process.shift == 0


@pytest.mark.parametrize(("is_behind_ms", "shift_ms"), [(5000, 4990), (-5000, -4990)])
def test_a_clock_of_another_host_is_moved_by_the_least_that_puts_calls_inside_their_waiting(
    is_behind_ms: int, shift_ms: int, tmp_path: Path
) -> None:
    trace = Trace()
    trace.begin(7)
    now = trace.now() // MS
    # Asked 30 ms ago, begun there 10 ms later, done there 10 ms ago.
    there = recorded(now - 20 - is_behind_ms, now - 10 - is_behind_ms)
    trace.take("worker-0", pickle.loads(pickle.dumps(there)), called_at=(now - 30) * MS)
    # The first millisecond is the one that `now` was cut off in.
    assert trace.others["worker-0"].shift / MS == pytest.approx(shift_ms, abs=1.5)
    assert (
        written(tmp_path, TracePart((now - 40) * MS, now * MS, []), trace.others).about["step"] == 7
    )


@pytest.mark.nightly
def test_spans_of_many_processes_are_bounded_and_the_longest_stay() -> None:
    """512 processes of 2,048 spans each, in eight calls: a million, of which 131,072 stay."""
    trace = Trace()
    trace.begin(7)
    start = trace.now()

    def part(call: int) -> TracePart:
        spans = [Span("MainThread", "step", start, start + 1 + place, None) for place in range(256)]
        phase = Span("phase", f"phase {call}", start, None, None)
        return TracePart(start, start + 256, [*map(tuple, [phase, *spans[1:]])])

    for call in range(8):
        for process in range(512):
            trace.take(f"worker-{process}", part(call), called_at=start)
    held = [each.spans for each in trace.others.values()]
    assert len(held) == 512
    assert sum(map(len, held)) <= MOST_SPANS
    assert trace.left_out == 512 * 8 * 256 - sum(map(len, held))
    for spans in held:
        phases = [each for each in spans if each[0] == "phase"]
        lengths = [each[3] - each[2] for each in spans if each[0] != "phase"]
        assert len(phases) == 8
        assert lengths.count(256) == 8
    found = trace.end()
    assert found is not None
    text = json.dumps(trace_record(7, found, trace.others, left_out=trace.left_out))
    assert len(text) < 32 << 20
    assert f'"left_out_spans": {trace.left_out}' in text
    trace.begin(8)
    assert trace.left_out == 0


def test_what_answers_behind_the_end_of_a_recording_is_not_of_the_next() -> None:
    trace = Trace()
    trace.begin(7)
    trace.end()
    trace.take("worker-0", recorded(1, 2), called_at=0)
    trace.begin(8)
    assert dict(trace.others) == {}


def test_the_first_steps_and_those_that_are_asked_for_have_a_file_each(tmp_path: Path) -> None:
    told: list[str] = []
    traces = StepTraces(tmp_path / "trace", told.append, first=2, also=range(7, 8))
    for step in traces.steps(at_once, range(1, 9)):
        with TRACE.span("learn"):
            pass
        if step in (4, 7):
            traces.request()
    files = sorted(path.name for path in (tmp_path / "trace").iterdir())
    assert files == [f"step-{step}.json" for step in (1, 2, 5, 7, 8)]
    for step in (1, 2, 5, 7, 8):
        timeline = read_timeline(tmp_path / f"trace/step-{step}.json")
        assert timeline.about["step"] == step
        assert [event.name for event in timeline.tracks["driver", "main"]] == ["learn"]
    assert TRACE.step is None
    assert told == [
        f"timeline of step {step}: {tmp_path / 'trace'}/step-{step}.json" for step in (5, 8)
    ]


def test_the_next_step_does_not_wait_until_a_disk_has_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    traces = StepTraces(tmp_path / "trace", print, first=1)
    assert list(traces.steps(at_once, [1])) == [1]
    assert read_timeline(tmp_path / "trace/step-1.json").about["step"] == 1
    assert waited == []


def test_a_run_that_goes_on_from_a_step_has_no_timelines_of_later_ones(tmp_path: Path) -> None:
    traces = StepTraces(tmp_path / "trace", print, first=12)
    assert list(traces.steps(at_once, range(1, 13))) == [*range(1, 13)]
    copies = {"step-12 (copy).json", "step-.json"}
    for name in copies:
        (tmp_path / "trace" / name).write_text("{}")
    traces.forget_later(9)
    assert {path.name for path in (tmp_path / "trace").iterdir()} == copies | {
        f"step-{step}.json" for step in range(1, 10)
    }


def test_a_step_that_fails_leaves_nothing_that_the_next_attempt_records(tmp_path: Path) -> None:
    traces = StepTraces(tmp_path / "trace", print, first=1)
    given_up = traces.steps(at_once, range(1, 3))
    assert (next(given_up), TRACE.step) == (1, 1)
    for _ in traces.steps(at_once, range(2, 3)):
        assert TRACE.step is None
    assert not (tmp_path / "trace").exists()


def test_a_disk_that_takes_no_file_is_an_output_error_which_the_run_log_can_keep(
    tmp_path: Path,
) -> None:
    (tmp_path / "trace").write_text("a file in the way")
    refused: list[str] = []

    def keep(_place: object, write: Callable[[], None]) -> None:
        try:
            write()
        except OutputError as error:
            refused.append(str(error))

    assert list(StepTraces(tmp_path / "trace", print, first=1).steps(keep, [1])) == [1]
    assert len(refused) == 1
    assert refused[0].startswith(f"{tmp_path / 'trace'} cannot be written")
