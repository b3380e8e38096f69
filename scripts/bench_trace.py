"""Measure the cost of recording the timeline of a step.

    python scripts/bench_trace.py [--pairs 60] [--prompts 32] [--json results.json] [override ...]

All steps of one run of the tiny model do the same work: the same prompts, answered with the most
likely tokens, and a learning rate that changes no weight. Of each two consecutive steps one is
chosen at random and recorded, on request by SIGUSR1. A step lasts until the next one starts, so it
includes writing the file of its timeline. The mean difference of all pairs, without the extreme
quarter at either end, has an interval of 95 %. A callback of the run records the times. Steps with
few prompts have the same number of spans and show a cost of milliseconds more clearly.

It also estimates the cost from its parts: the events of a step times the cost of one in a worker,
and the driver's time to build and write a timeline. Needs the data and the model of
scripts/quickstart.sh.
"""

import argparse
import json
import pickle
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tiny_runs import CHECKOUT, STEPS_ALONE

from mindrl.launch.callbacks import StepView
from mindrl.observability.step_traces import StepTraces
from mindrl.observability.trace import TRACE
from mindrl.programs.python_run import train

SKIPPED = 4
"""Steps at the start that include work that is done once."""
LOOPS = 50_000
SAME_WORK = (
    "generate_config.sampling_config.temperature=0.01",
    "actor_config.lr=1.0e-30",
)
DATA = CHECKOUT / ".cache/tiny/data/train.jsonl"
_LEFT_OUT = 0.25
_DRAWS = 4000


@dataclass
class Clock:
    """A callback of the run that requests recordings, and stores the duration of each step."""

    recorded: frozenset[int]
    ends: dict[int, float] = field(default_factory=dict)
    """Time at which the metrics of a step were recorded."""
    inside: dict[int, float] = field(default_factory=dict)
    """Seconds of each step from its metrics."""

    def __call__(self, view: StepView) -> None:
        """Store the time of a step, and request the recording of the next one if it is chosen."""
        if "seconds/step" not in view.metrics:
            return
        self.ends[view.step] = time.perf_counter()
        self.inside[view.step] = view.metrics["seconds/step"]
        if view.step + 1 in self.recorded:
            signal.raise_signal(signal.SIGUSR1)

    def whole(self, step: int) -> float:
        """Return the seconds from the start of a step to the start of the next one."""
        return self.inside[step] + self.ends[step + 1] - self.ends[step] - self.inside[step + 1]


def main() -> int:
    """Run, measure the parts and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60, help="pairs (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=32, help="per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for choosing (default: %(default)s)")
    parser.add_argument("--json", help="also write figures and seconds of all pairs here")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = (*sized(options.prompts), *overrides)
        pairs, events = measured(Path(folder) / "run", options.pairs, options.seed, asked)
    found = figures(pairs, events)
    for name, value in found.items():
        print(f"{name:48} {value:12.6g}")
    if options.json:
        record = {**found, "pairs, recorded and not": pairs}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def sized(prompts: int) -> tuple[str, str]:
    """Return the overrides that set the number of prompts per step."""
    keys = ("megatron_training.global_batch_size", "rl_config.mini_batch_size")
    return f"{keys[0]}={prompts}", f"{keys[1]}={prompts}"


def measured(
    folder: Path, count: int, seed: int, overrides: Sequence[str]
) -> tuple[list[tuple[float, float]], int]:
    """Run; return the seconds of each pair, recorded and not, and the events of a timeline."""
    coin = random.Random(seed)
    firsts = range(SKIPPED + 1, SKIPPED + 1 + 2 * count, 2)
    turns = [(first, first + 1)[:: coin.choice((1, -1))] for first in firsts]
    clock = Clock(frozenset(recorded for recorded, _ in turns))
    # One more: its start ends the last pair.
    asked = [*STEPS_ALONE, *SAME_WORK, f"megatron_training.train_iters={firsts.stop}", *overrides]
    sections: dict[str, dict[str, Any]] = {}
    for key, value in (each.split("=", 1) for each in asked):
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = yaml.safe_load(value)
    prompts = int(sections["megatron_training"]["global_batch_size"])
    rows = [json.loads(line) for line in DATA.read_text().splitlines()[:prompts]]
    train("grpo_tiny_cpu", train_dataset=rows, output_dir=folder, callbacks=[clock], **sections)
    files = {int(path.stem[5:]): path for path in (folder / "trace").iterdir()}
    assert files.keys() == clock.recorded, "the requested steps were recorded"
    traces = (json.loads(path.read_bytes())["traceEvents"] for path in files.values())
    events = statistics.median_low([sum(each["ph"] == "X" for each in trace) for trace in traces])
    return [(clock.whole(on), clock.whole(off)) for on, off in turns], events


def figures(pairs: Sequence[tuple[float, float]], events: int) -> dict[str, float]:
    """Compare the steps of each pair, and the difference with the parts."""
    on, off = (statistics.median(side) for side in zip(*pairs, strict=True))
    differences = [recorded - not_recorded for recorded, not_recorded in pairs]
    low, high = interval(differences)
    parts = costs(events)
    each = parts["ns of a span that is recorded"] + parts["ns of its way to the driver"]
    worst = (events * each + 1e9 * parts["seconds to put together and write"]) / 1e9
    return {
        "pairs of steps": float(len(pairs)),
        "median seconds of a step, recorded": on,
        "median seconds of a step, not recorded": off,
        "mean difference in seconds": middle(differences),
        "share of a step": middle(differences) / off,
        "share of a step, low end": low / off,
        "share of a step, high end": high / off,
        "events of a step": float(events),
        **parts,
        "share of a step, all events one after another": worst / off,
        "share of a step where nothing is recorded": events
        * parts["ns of a span, off"]
        / 1e9
        / off,
    }


def middle(values: Sequence[float]) -> float:
    """Return the mean without the quarter at either end."""
    out = int(len(values) * _LEFT_OUT)
    return statistics.fmean(sorted(values)[out : len(values) - out])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of such means by bootstrap."""
    draws = random.Random(0)
    means = [middle(draws.choices(values, k=len(values))) for _ in range(_DRAWS)]
    ends = statistics.quantiles(means, n=40)
    return ends[0], ends[-1]


def costs(events: int) -> dict[str, float]:
    """Measure the cost of the parts of a recording in this process."""
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
    # Both ends take about the same time.
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
    """Return the minimum of five times."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
