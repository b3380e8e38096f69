"""The account of a device, with regions that are really stored."""

import contextlib

import pytest
from recorded_device import RecordedRegion

from mindrl.errors import DeviceMemoryError, ResidueError
from mindrl.memory.schedule import Region
from mindrl.workers.device_ledger import DeviceLedger

MIB = 2**20


class Sticky(RecordedRegion):
    """Says that it has left, and stays."""

    def offload(self) -> int:
        return 0


class Half(RecordedRegion):
    """Comes in two storages, and the device has room for one."""

    def onload(self) -> int:
        super().onload()
        raise RuntimeError("NPU out of memory. Tried to allocate 300 bytes")


def test_of_a_region_that_the_device_refuses_halfway_nothing_stays() -> None:
    ledger = DeviceLedger(None)
    ledger.add(Region.ACTOR_WEIGHTS, RecordedRegion(Region.ACTOR_WEIGHTS, [], is_there=True))
    ledger.add(Region.ACTOR_OPTIMIZER, Half(Region.ACTOR_OPTIMIZER, [], is_there=False))
    with pytest.raises(
        DeviceMemoryError, match=r"actor_optimizer needs .* device: actor_weights 0"
    ):
        ledger.onload(Region.ACTOR_OPTIMIZER)
    assert ledger.region_bytes() == {Region.ACTOR_WEIGHTS: 100}


def test_a_region_that_stays_after_its_release_is_a_defect_that_is_named() -> None:
    ledger = DeviceLedger(None)
    ledger.add(Region.ACTOR_OPTIMIZER, Sticky(Region.ACTOR_OPTIMIZER, [], is_there=True))
    with pytest.raises(ResidueError, match="600 bytes of actor_optimizer are still on the device"):
        ledger.offload(Region.ACTOR_OPTIMIZER)


def test_what_is_built_on_a_device_that_is_too_small_is_refused_at_once() -> None:
    ledger = DeviceLedger(100)
    ledger.add(Region.ACTOR_WEIGHTS, RecordedRegion(Region.ACTOR_WEIGHTS, [], is_there=True))
    critic = RecordedRegion(Region.CRITIC_WEIGHTS, [], is_there=True)
    with pytest.raises(DeviceMemoryError, match="out of device memory"):
        ledger.add(Region.CRITIC_WEIGHTS, critic)


def test_messages_need_room_too_and_give_it_back_even_after_an_error() -> None:
    ledger = DeviceLedger(3 * MIB)
    with contextlib.suppress(ValueError), ledger.staging(2 * MIB):
        assert ledger.region_bytes() == {Region.STAGING: 2 * MIB}
        raise ValueError
    assert ledger.region_bytes() == {}
    assert ledger.flush_peak() == 2 * MIB
    with (
        pytest.raises(DeviceMemoryError, match=r"of 3.0 MiB: staging needs 4.0 MiB more"),
        ledger.staging(4 * MIB),
    ):
        pass


def test_the_peak_of_the_next_stretch_begins_with_what_is_there() -> None:
    ledger = DeviceLedger(None)
    ledger.add(Region.ACTOR_WEIGHTS, RecordedRegion(Region.ACTOR_WEIGHTS, [], is_there=True))
    with ledger.staging(50):
        pass
    assert ledger.flush_peak() == 150
    assert ledger.flush_peak() == 100


def test_a_region_is_on_the_device_or_on_the_host_or_was_released_for_good() -> None:
    ledger = DeviceLedger(None)
    for name in (Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER, Region.ACTOR_GRADIENTS):
        ledger.add(name, RecordedRegion(name, [], is_there=True))
    for name in (Region.ACTOR_OPTIMIZER, Region.ACTOR_GRADIENTS):
        ledger.offload(name)
    assert ledger.region_bytes() == {Region.ACTOR_WEIGHTS: 100}
    assert ledger.host_bytes() == {Region.ACTOR_OPTIMIZER: 600}
