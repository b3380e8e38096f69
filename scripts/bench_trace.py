"""Measure what it costs to record the timeline of a step.

    python scripts/bench_trace.py [--steps 40] [--json results.json] [override ...]

One run of the tiny model, every second step recorded on request, as `kill -USR1` does it: the
ratio of the two kinds of steps. Beside it the same from its parts, which a busy machine blurs
less: the events of a step times what one costs a worker, and what the driver takes to put a
timeline together and to write it. Needs the data and the model of scripts/quickstart.sh.
"""

import argparse
import json
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_runs import CHECKOUT, STEPS_ALONE, command, recorded

from mindrl.observability.step_traces import StepTraces
from mindrl.observability.trace import TRACE

SKIPPED = 2
"""Steps at the start that meet what is done once."""
LOOPS = 50_000
_LOOK_SECONDS = 0.01


def main() -> int:
    """Run, measure the parts, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--json", help="write the figures there")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, events = alternating(Path(folder) / "run", options.steps, overrides)
    found = figures(rows, events)
    for name, value in found.items():
        print(f"{name:48} {value:12.6g}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def alternating(
    folder: Path, steps: int, overrides: list[str]
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Run with every second step recorded; returns the steps, and the events of the recorded."""
    asked = [*STEPS_ALONE, f"megatron_training.train_iters={steps}", *overrides]
    line = command(folder, *asked)
    process = subprocess.Popen(line, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    done = 0
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        if (now := len(recorded(folder))) > done:
            done = now
            if done % 2 == 0:
                # The step that has begun by now is left alone, or the one that begins at once.
                process.send_signal(signal.SIGUSR1)
    if process.returncode:
        sys.exit(f"the run ended with exit code {process.returncode}")
    files = {int(path.stem[5:]): path for path in (folder / "trace").iterdir()}
    events = {
        step: sum(each["ph"] == "X" for each in json.loads(path.read_bytes())["traceEvents"])
        for step, path in files.items()
    }
    return recorded(folder), events


def figures(rows: list[dict[str, Any]], events: dict[int, int]) -> dict[str, float]:
    """Compare the steps with each other, and with the parts."""
    late = [row for row in rows if row["step"] > SKIPPED]
    kinds = {
        is_on: [row["seconds/step"] for row in late if (row["step"] in events) is is_on]
        for is_on in (True, False)
    }
    on, off = (statistics.median(kinds[is_on]) for is_on in (True, False))
    count = statistics.median(events.values())
    parts = costs(round(count))
    each = parts["ns of a span that is recorded"] + parts["ns of its way to the driver"]
    worst = (count * each + 1e9 * parts["seconds to put together and write"]) / 1e9
    return {
        "steps recorded": float(len(kinds[True])),
        "steps not recorded": float(len(kinds[False])),
        "median seconds of a step, recorded": on,
        "median seconds of a step, not recorded": off,
        "ratio": on / off,
        "events of a step": count,
        **parts,
        "share of a step, all events one after another": worst / off,
        "share of a step where nothing is recorded": count * parts["ns of a span, off"] / 1e9 / off,
    }


def costs(events: int) -> dict[str, float]:
    """Measure what the parts of a recording cost this process."""
    names = [f"event {index}" for index in range(500)]

    def bare() -> None:
        for index in range(LOOPS):
            names[index % len(names)]

    def spans() -> None:
        TRACE.begin(TRACE.step)
        for index in range(LOOPS):
            with TRACE.span(names[index % len(names)]):
                pass

    TRACE.begin(None)
    nothing, off = seconds(bare), seconds(spans)
    TRACE.begin(1)
    on = seconds(spans)
    for index in range(events):
        with TRACE.span(f"event {index % 500}"):
            pass
    found = TRACE.end()
    assert found is not None
    # Either end takes about as long.
    sent = 2 * seconds(lambda: pickle.dumps(found))
    with tempfile.TemporaryDirectory() as folder:
        written = seconds(lambda: _write(Path(folder), events))
    return {
        "ns of a span, off": (off - nothing) / LOOPS * 1e9,
        "ns of a span that is recorded": (on - nothing) / LOOPS * 1e9,
        "ns of its way to the driver": sent / len(found.spans) * 1e9,
        "seconds to put together and write": written,
    }


def _write(folder: Path, events: int) -> None:
    traces = StepTraces(folder / "trace", print, first=1)
    for _ in traces.steps(lambda _place, write: write(), [1]):
        for index in range(events):
            with TRACE.span(f"event {index % 500}"):
                pass


def seconds(act: Callable[[], object]) -> float:
    """Return the least of five times."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
