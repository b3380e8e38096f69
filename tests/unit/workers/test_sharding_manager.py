"""The order of the memory schedule: what leaves the device, and when, before what comes.

The recorders below satisfy the manager's protocols and write down each call. That the calls do
what they say is proved with the real parts in tests/distributed.
"""

import pytest

from mindrl.allocation.regions import TrainRegion
from mindrl.errors import PhaseError
from mindrl.workers.sharding_manager import Phase, ShardingManager

ALL = frozenset(TrainRegion)
BYTES = {TrainRegion.PARAMETERS: 100, TrainRegion.GRADIENTS: 20, TrainRegion.OPTIMIZER: 300}


class RecordingTrainer:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def offload(self, region: TrainRegion) -> int:
        self.calls.append(f"offload {region.value}")
        return BYTES[region]

    def onload(self, region: TrainRegion) -> int:
        self.calls.append(f"onload {region.value}")
        return BYTES[region]


class RecordingEngine:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def sleep(self) -> None:
        self.calls.append("sleep")

    def allocate_weights(self) -> None:
        self.calls.append("allocate weights")

    def allocate_kv_cache(self) -> None:
        self.calls.append("allocate kv cache")


class RecordingResharder:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def reshard(self) -> None:
        self.calls.append("reshard")

    def bytes_moved(self) -> dict[str, int]:
        return {"sent": 1, "received": 2, "local": 3}


def manager(
    *way: Phase, offloaded: frozenset[TrainRegion] = ALL
) -> tuple[ShardingManager, list[str]]:
    """Build a manager, go a way, and forget what was recorded on it."""
    calls: list[str] = []
    built = ShardingManager(
        RecordingTrainer(calls),
        RecordingEngine(calls),
        RecordingResharder(calls),
        offloaded=offloaded,
    )
    for phase in way:
        built.enter(phase)
    built.flush_metrics()
    calls.clear()
    return built, calls


def test_a_new_manager_is_in_phase_train_as_a_new_model_is() -> None:
    built, calls = manager()
    assert built.phase is Phase.TRAIN
    assert calls == []


@pytest.mark.parametrize(
    ("way", "target", "expected"),
    [
        ((), Phase.FORWARD, ["offload train_optimizer", "offload train_grad"]),
        (
            (Phase.FORWARD,),
            Phase.TRAIN,
            ["onload train_grad", "onload train_optimizer"],
        ),
        (
            (Phase.FORWARD,),
            Phase.ROLLOUT,
            [
                "allocate weights",
                "reshard",
                "offload train_param",
                "allocate kv cache",
            ],
        ),
        (
            (),
            Phase.ROLLOUT,
            [
                "offload train_optimizer",
                "offload train_grad",
                "allocate weights",
                "reshard",
                "offload train_param",
                "allocate kv cache",
            ],
        ),
        ((Phase.FORWARD, Phase.ROLLOUT), Phase.FORWARD, ["sleep", "onload train_param"]),
    ],
)
def test_each_legal_way_releases_before_it_allocates_and_the_kv_cache_comes_last(
    way: tuple[Phase, ...], target: Phase, expected: list[str]
) -> None:
    built, calls = manager(*way)
    built.enter(target)
    assert calls == expected
    assert built.phase is target


def test_a_whole_step_leaves_each_region_as_often_as_it_comes_back() -> None:
    built, calls = manager(Phase.FORWARD)
    for phase in (Phase.ROLLOUT, Phase.FORWARD, Phase.TRAIN, Phase.FORWARD):
        built.enter(phase)
    for region in TrainRegion:
        assert calls.count(f"offload {region.value}") == calls.count(f"onload {region.value}") == 1
    assert calls.count("sleep") == calls.count("allocate kv cache") == 1


@pytest.mark.parametrize(
    ("way", "target", "legal"),
    [
        ((), Phase.TRAIN, "forward, rollout"),
        ((Phase.FORWARD,), Phase.FORWARD, "train, rollout"),
        ((Phase.ROLLOUT,), Phase.TRAIN, "forward"),
        ((Phase.ROLLOUT,), Phase.ROLLOUT, "forward"),
    ],
)
def test_any_other_way_is_refused_with_the_legal_ones_and_moves_nothing(
    way: tuple[Phase, ...], target: Phase, legal: str
) -> None:
    built, calls = manager(*way)
    before = built.phase
    with pytest.raises(PhaseError) as caught:
        built.enter(target)
    assert str(caught.value) == (
        f"the device cannot go from {before.value} to {target.value}; "
        f"from {before.value} it can go to: {legal}"
    )
    assert calls == []
    assert built.phase is before


def test_a_call_outside_its_phases_is_refused_with_the_phase_that_it_needs() -> None:
    built, _ = manager(Phase.ROLLOUT)
    built.require(Phase.ROLLOUT)
    built.require(Phase.FORWARD, Phase.ROLLOUT)
    with pytest.raises(PhaseError) as caught:
        built.require(Phase.FORWARD, Phase.TRAIN)
    assert str(caught.value) == "this needs phase forward or train, the device is in rollout"


@pytest.mark.parametrize("kept", list(TrainRegion))
def test_a_region_whose_switch_is_off_stays_where_it_is_on_every_way(kept: TrainRegion) -> None:
    built, calls = manager(offloaded=ALL - {kept})
    for phase in (Phase.ROLLOUT, Phase.FORWARD, Phase.TRAIN, Phase.FORWARD):
        built.enter(phase)
    moved = {call.split()[1] for call in calls if call.startswith(("offload", "onload"))}
    assert moved == {region.value for region in ALL - {kept}}
    assert not [name for name in built.flush_metrics() if kept.value in name]


def test_with_all_switches_off_only_the_rollout_side_moves() -> None:
    built, calls = manager(offloaded=frozenset())
    built.enter(Phase.ROLLOUT)
    built.enter(Phase.FORWARD)
    built.enter(Phase.TRAIN)
    assert calls == [
        "allocate weights",
        "reshard",
        "allocate kv cache",
        "sleep",
    ]


def test_metrics_name_the_bytes_and_seconds_of_each_move_and_are_given_once() -> None:
    built, _ = manager()
    built.enter(Phase.ROLLOUT)
    metrics = built.flush_metrics()
    assert {name: value for name, value in metrics.items() if name.startswith("bytes/")} == {
        "bytes/offload_train_optimizer": 300,
        "bytes/offload_train_grad": 20,
        "bytes/offload_train_param": 100,
        "bytes/reshard_sent": 1,
        "bytes/reshard_received": 2,
        "bytes/reshard_local": 3,
    }
    seconds = {name: value for name, value in metrics.items() if name.startswith("seconds/swap_")}
    assert {name.removeprefix("seconds/swap_") for name in seconds} == {
        "offload_train_optimizer",
        "offload_train_grad",
        "allocate_rollout",
        "reshard",
        "offload_train_param",
        "allocate_kv_cache",
    }
    assert min(seconds.values()) >= 0
    assert len(metrics) == 12
    assert built.flush_metrics() == {}


def test_metrics_of_two_ways_between_flushes_add_up() -> None:
    built, _ = manager(Phase.FORWARD)
    for phase in (Phase.TRAIN, Phase.FORWARD, Phase.TRAIN, Phase.FORWARD):
        built.enter(phase)
    metrics = built.flush_metrics()
    assert metrics["bytes/onload_train_optimizer"] == 600
    assert metrics["bytes/offload_train_grad"] == 40
