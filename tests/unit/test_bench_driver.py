"""What the driver of a run spends on more workers, with workers that have no models."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "bench_driver", raising=False)
    return import_module("bench_driver")


def test_growth_is_one_where_a_figure_grows_as_the_workers_do(bench: ModuleType) -> None:
    names = ("driver_cpu_seconds", "ray_cpu_seconds", "calls", "objects", "driver_mib")
    fewest = dict.fromkeys(names, 3.0)
    most = fewest | {"calls": 48.0, "objects": 6.0}
    grown = bench.growth(fewest, most, 16)
    assert (grown["calls"], grown["objects"]) == (1.0, 0.125)


def test_steps_before_the_third_do_not_count(bench: ModuleType) -> None:
    steps = [
        bench.Spent(
            driver_cpu_seconds=cpu,
            ray_cpu_seconds=0.0,
            calls=calls,
            objects=0,
            wall_seconds=0.0,
            mib=mib,
        )
        for cpu, calls, mib in (
            (50.0, 9, 10.0),
            (60.0, 20, 30.0),
            (61.0, 24, 31.0),
            (64.0, 28, 32.0),
        )
    ]
    found = bench.per_step(steps, before_mib=5.0)
    assert (found["driver_cpu_seconds"], found["calls"]) == (2.0, 4.0)
    assert (found["driver_mib"], found["growth_mib"]) == (27.0, 2.0)


@pytest.mark.nightly
def test_eight_workers_get_twice_the_messages_of_four(bench: ModuleType) -> None:
    """A whole run of each on real actors: a call more of a step would be one for each worker."""
    with bench.cluster_of(8) as cluster:
        four, eight = (bench.measured(cluster, workers, 5, None) for workers in (4, 8))
    assert eight["calls"] == 2 * four["calls"]
    assert four["calls"] <= 4 * 4
    # Arguments that all workers share are stored once.
    assert eight["objects"] <= 2 * four["objects"]
    # Four times as much as in proportion, on a busy machine.
    assert eight["driver_cpu_seconds"] <= 8 * four["driver_cpu_seconds"]
