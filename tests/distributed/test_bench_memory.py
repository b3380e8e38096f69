"""The memory benchmark with its tiny model: bytes are exact at any size, seconds say nothing."""

from typing import Any

import pytest
from forked_workers import ForkedWorkers

from mindrl.memory.schedule import Region

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, forked_workers: ForkedWorkers) -> Any:
    folder = str(tmp_path_factory.mktemp("model"))
    (found,) = forked_workers.run("bench_probe:measured", "ppo", folder)
    return found


def copied(way: dict[str, float], *regions: Region) -> float:
    return sum(
        way.get(f"bytes/{to}_{region.value}", 0.0)
        for region in regions
        for to in ("to_host", "to_device")
    )


def test_the_schedule_copies_the_least_and_has_the_peak_of_one_phase(measured: Any) -> None:
    ours = measured["ways"]["schedule"]
    assert copied(ours, *Region) == sum(measured["least_bytes"].values()) > 30 << 20
    assert ours["memory/device_peak_bytes"] == measured["need_bytes"]


def test_others_copy_weights_that_did_not_change(measured: Any) -> None:
    ways = measured["ways"]
    weights = copied(ways["call by call"], Region.ACTOR_WEIGHTS) / 6
    # Rollout, log-probs and update, there and back; ours comes twice and leaves once.
    assert copied(ways["schedule"], Region.ACTOR_WEIGHTS) == 3 * weights
    assert copied(ways["weights stay"], Region.ACTOR_WEIGHTS) == 2 * weights
    # The reference never changes, and is read once in a step.
    reference = measured["ways"]["schedule"]["bytes/to_device_reference_weights"]
    assert copied(ways["schedule"], Region.REFERENCE_WEIGHTS) == reference
    assert copied(ways["call by call"], Region.REFERENCE_WEIGHTS) == 2 * reference
    # Gradients are as large as weights.
    assert copied(ways["schedule"], Region.ACTOR_GRADIENTS) == 0
    assert copied(ways["everything"], Region.ACTOR_GRADIENTS) == 2 * weights
