"""The memory schedule carried out: what leaves the device, and when, before what comes.

The regions write down each call. That the calls do what they say is proved with the real parts
in tests/distributed.
"""

from typing import get_args

import pytest
import torch
from recorded_device import BYTES, IN_FLIGHT, MOVABLE, RecordedRegion, RecordedResharder, manager

from mindrl.config.layout_keys import Role
from mindrl.errors import DeviceMemoryError, ReshardError
from mindrl.memory.schedule import Phase, Region, step_phases
from mindrl.platform.host_arena import HostArena
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import StoredRegion
from mindrl.workers.sharding_manager import ShardingManager

WHOLE_STEP = step_phases(get_args(Role))


@pytest.mark.parametrize(
    ("way", "target", "expected"),
    [
        ((), Phase.FORWARD, ["bring actor_weights"]),
        ((Phase.FORWARD,), Phase.TRAIN, ["bring actor_gradients", "bring actor_optimizer"]),
        (
            (Phase.TRAIN,),
            Phase.ROLLOUT,
            [
                "release actor_gradients",
                "release actor_optimizer",
                "bring rollout_weights",
                "reshard",
                "release actor_weights",
                "bring kv_cache",
            ],
        ),
        (
            (Phase.CRITIC_FORWARD,),
            Phase.ROLLOUT,
            [
                "release critic_weights",
                "bring actor_weights",
                "bring rollout_weights",
                "reshard",
                "release actor_weights",
                "bring kv_cache",
            ],
        ),
        (
            (Phase.ROLLOUT,),
            Phase.REFERENCE,
            ["release kv_cache", "release rollout_weights", "bring reference_weights"],
        ),
        (
            (Phase.CRITIC_TRAIN,),
            Phase.TRAIN,
            [
                "release critic_weights",
                "release critic_gradients",
                "release critic_optimizer",
                "bring actor_weights",
                "bring actor_gradients",
                "bring actor_optimizer",
            ],
        ),
        ((Phase.ROLLOUT,), Phase.ROLLOUT, []),
    ],
)
def test_each_way_releases_before_it_allocates_and_the_kv_cache_comes_last(
    way: tuple[Phase, ...], target: Phase, expected: list[str]
) -> None:
    built, calls = manager(*way)
    built.enter(target)
    assert calls == expected
    assert built.phase is target


def test_a_whole_step_leaves_each_region_as_often_as_it_comes_and_most_of_them_once() -> None:
    built, calls = manager(*WHOLE_STEP)
    for phase in WHOLE_STEP:
        built.enter(phase)
    came = {name: calls.count(f"bring {name.value}") for name in BYTES}
    assert came == {name: calls.count(f"release {name.value}") for name in BYTES} | {
        # They left for the rollout, and came back for the log-probs and again after the critic.
        Region.ACTOR_WEIGHTS: 2,
        # The step ends with an update, for which they are still there.
        Region.ACTOR_GRADIENTS: 1,
        Region.ACTOR_OPTIMIZER: 1,
    }
    assert {name for name, times in came.items() if times > 1} == {Region.ACTOR_WEIGHTS}


def test_what_no_update_changed_is_copied_to_the_device_only() -> None:
    built, _ = manager(*WHOLE_STEP)
    for phase in WHOLE_STEP:
        built.enter(phase)
    metrics = built.flush_metrics()
    to_host = {name: value for name, value in metrics.items() if "to_host" in name and value}
    # The actor's last update has just begun: its optimizer leaves at the next rollout.
    assert to_host == {
        "bytes/to_host_actor_weights": 100,
        "bytes/to_host_actor_optimizer": 600,
        "bytes/to_host_critic_weights": 50,
        "bytes/to_host_critic_optimizer": 300,
    }
    assert metrics["bytes/to_device_reference_weights"] == 100
    assert metrics["bytes/to_device_actor_weights"] == 200


@pytest.mark.parametrize("kept", sorted(MOVABLE, key=lambda name: name.value))
def test_a_region_whose_switch_is_off_stays_where_it_is_on_every_way(kept: Region) -> None:
    built, calls = manager(movable=MOVABLE - {kept})
    for phase in (*WHOLE_STEP, *WHOLE_STEP):
        built.enter(phase)
    assert not [call for call in calls if call.endswith(kept.value)]
    assert kept in built.resident


def test_with_all_switches_off_only_the_rollout_side_moves() -> None:
    built, calls = manager(movable=frozenset())
    for phase in WHOLE_STEP:
        built.enter(phase)
    assert calls == [
        "bring rollout_weights",
        "reshard",
        "bring kv_cache",
        "release kv_cache",
        "release rollout_weights",
    ]


def test_the_peak_of_a_step_is_what_its_hungriest_phase_needs() -> None:
    built, _ = manager()
    for phase in WHOLE_STEP:
        built.enter(phase)
    train = sum(
        BYTES[name]
        for name in (Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER)
    )
    assert built.flush_metrics()["memory/device_peak_bytes"] == train == 900


def test_messages_in_flight_count_while_both_sides_have_their_weights() -> None:
    built, _ = manager()
    built.record(is_on=True)
    built.enter(Phase.ROLLOUT)
    reshard = built.ledger.peak_bytes
    assert reshard == max(100 + 90 + IN_FLIGHT, 90 + 400)
    assert [moment.label for moment in built.flush_moments()] == [
        "bring actor_weights",
        "bring rollout_weights",
        "reshard",
        "release actor_weights",
        "bring kv_cache",
        "rollout",
    ]


def test_a_device_that_is_too_small_says_what_did_not_fit_beside_what() -> None:
    built, calls = manager(Phase.FORWARD, capacity=850)
    with pytest.raises(DeviceMemoryError) as caught:
        built.enter(Phase.TRAIN)
    assert str(caught.value) == (
        "out of device memory of 0.0 MiB: actor_optimizer needs 0.0 MiB more; on the device: "
        "actor_weights 0.0 MiB, actor_gradients 0.0 MiB"
    )
    assert calls == ["bring actor_gradients"]


def test_after_a_refused_switch_the_phase_of_before_begins_anew() -> None:
    built, calls = manager(Phase.FORWARD, capacity=850)
    with pytest.raises(DeviceMemoryError):
        built.enter(Phase.TRAIN)
    assert built.phase is None
    calls.clear()
    built.enter(Phase.FORWARD)
    assert calls == ["release actor_gradients"]
    assert (built.phase, built.ledger.region_bytes()) == (
        Phase.FORWARD,
        {Region.ACTOR_WEIGHTS: 100},
    )


def test_weights_that_left_in_a_reshard_that_failed_come_back_from_the_host() -> None:
    first, second = torch.arange(4.0), torch.ones(2)
    weights = StoredRegion([first, second], HostArena(4096, device_type="cpu"), "cpu")

    class Failing(RecordedResharder):
        def reshard(self) -> None:
            weights.offload_storage_of(first)
            raise ReshardError("rank 1 waited in vain")

    ledger = DeviceLedger(None)
    ledger.add(Region.ACTOR_WEIGHTS, weights)
    for name in (Region.ROLLOUT_WEIGHTS, Region.KV_CACHE):
        ledger.add(name, RecordedRegion(name, [], is_there=False))
    built = ShardingManager(ledger, Failing([]), movable={Region.ACTOR_WEIGHTS}, device_type="cpu")
    built.enter(Phase.FORWARD)
    with pytest.raises(ReshardError):
        built.enter(Phase.ROLLOUT)
    assert weights.device_bytes() == 8
    built.enter(Phase.FORWARD)
    assert ledger.region_bytes() == {Region.ACTOR_WEIGHTS: 24}
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [1, 1])


def test_metrics_name_the_bytes_and_seconds_of_each_move_and_are_given_once() -> None:
    built, _ = manager(Phase.TRAIN)
    built.enter(Phase.ROLLOUT)
    metrics = built.flush_metrics()
    assert {name: value for name, value in metrics.items() if name.startswith("bytes/")} == {
        "bytes/to_host_actor_optimizer": 600,
        "bytes/to_host_actor_weights": 100,
        "bytes/reshard_sent": 1,
        "bytes/reshard_received": 2,
        "bytes/reshard_local": 3,
        "bytes/reshard_needed": 2,
    }
    seconds = {name: value for name, value in metrics.items() if name.startswith("seconds/swap_")}
    assert {name.removeprefix("seconds/swap_") for name in seconds} == {
        "release_actor_gradients",
        "release_actor_optimizer",
        "bring_rollout_weights",
        "reshard",
        "release_actor_weights",
        "bring_kv_cache",
    }
    assert min(seconds.values()) >= 0
    assert set(built.flush_metrics()) == {"memory/device_peak_bytes"}


def test_metrics_of_two_ways_between_flushes_add_up() -> None:
    built, _ = manager(Phase.FORWARD)
    for phase in (Phase.TRAIN, Phase.FORWARD, Phase.TRAIN, Phase.FORWARD):
        built.enter(phase)
    metrics = built.flush_metrics()
    assert metrics["bytes/to_device_actor_optimizer"] == 1200
    assert metrics["bytes/to_host_actor_optimizer"] == 1200


def test_a_region_that_takes_the_turn_of_another_enters_after_it_has_left() -> None:
    built, calls = manager(Phase.TEACHER)
    name = Region.TEACHER_WEIGHTS
    second = RecordedRegion(name, calls, is_there=False)
    first = built.ledger.regions[name]
    built.exchange(name, second)
    assert calls == ["release teacher_weights", "bring teacher_weights"]
    assert not first.device_bytes()
    built.exchange(name, second)
    assert len(calls) == 2
    # Off the device nothing moves until the phase begins.
    built.enter(Phase.FORWARD)
    calls.clear()
    built.exchange(name, first)
    assert calls == []
    built.enter(Phase.TEACHER)
    assert calls == ["release actor_weights", "bring teacher_weights"]
    assert first.device_bytes()
    assert not second.device_bytes()
