"""The timeline benchmark counts the whole cost of a recorded step, with its uncertainty."""

import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mindrl.launch.callbacks import StepView


@pytest.fixture(scope="module")
def bench_trace(scripts: Path) -> ModuleType:
    assert scripts.is_dir()
    import bench_trace

    return sys.modules[bench_trace.__name__]


def test_a_step_counts_with_what_follows_it_until_the_next_begins(
    bench_trace: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([10.0, 11.25, 12.0])
    monkeypatch.setattr(bench_trace.time, "perf_counter", lambda: next(ends))
    clock = bench_trace.Clock(frozenset())
    for step, seconds in ((1, 0.5), (2, 1.0), (3, 0.75)):
        clock(StepView(step, {"seconds/step": seconds}, stop=lambda: None))
        # What is measured behind a step is none.
        clock(StepView(step, {"evaluation/accuracy": 0.5}, stop=lambda: None))
    # Between the ends of steps 1 and 2 lie step 2's own second and 0.25 of what followed step 1.
    assert clock.whole(1) == 0.5 + 0.25
    assert clock.whole(2) == 1.0


def test_the_interval_of_60_pairs_holds_the_difference_and_not_one_five_times_as_large(
    bench_trace: ModuleType,
) -> None:
    draw = random.Random(1)
    # 2 ms with a noise of 4 ms, and three pairs in which another program had the machine.
    found = [draw.gauss(0.002, 0.004) for _ in range(57)] + [3.0, -2.0, 1.0]
    low, high = bench_trace.interval(found)
    assert low < 0.002 < high < 0.01
    assert low < bench_trace.middle(found) < high
