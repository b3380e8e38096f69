"""A device as torch_npu shows it: numbers, visible devices, memory."""

import os
import time

import pytest
from device_probe import MIB
from simulated import ROOT, Machine, SimulatedNpus, vendors

pytestmark = pytest.mark.npu_simulated


def test_torch_numbers_the_visible_devices_in_their_order_and_knows_no_other(
    simulated_npus: SimulatedNpus,
) -> None:
    machine = Machine(devices=8, visible="2,5")
    found = simulated_npus.run("device_probe:device_facts", ranks=2, machine=machine)
    assert [(facts.chosen, facts.local_devices, facts.count) for facts in found] == [
        ("npu", 2, 2)
    ] * 2
    assert [facts.current for facts in found] == [0, 1]
    assert found[0].indexes == {"2": 0, "5": 1}
    assert "device" in found[0].beyond


def test_the_account_is_that_of_the_device_and_of_torchs_allocator_without_an_engines_pool(
    simulated_npus: SimulatedNpus,
) -> None:
    machine = Machine(capacity_bytes=256 * MIB)
    ((empty, full, released, given_back),) = simulated_npus.run(
        "device_probe:accounts", machine=machine
    )
    assert empty.capacity == 256 * MIB
    # torch_npu adds 32 bytes for the kernels of CANN, in steps of 512 and, of the device, of 2 MiB.
    assert full.allocated == full.peak_allocated == released.peak_allocated == 64 * MIB + 512
    assert full.taken - empty.taken == released.taken - empty.taken == (66 + 18) * MIB
    assert (released.allocated, given_back.peak_allocated) == (0, 0)
    assert given_back.taken - empty.taken == 18 * MIB


def test_host_code_that_follows_a_device_pointer_dies(simulated_npus: SimulatedNpus) -> None:
    with pytest.raises(AssertionError, match="EOFError"):
        simulated_npus.run("device_probe:read_as_host_memory")


@pytest.mark.usefixtures("packages")
def test_what_was_made_of_other_pins_goes_when_nobody_asked_for_it_in_a_week() -> None:
    names = "cann-000000000000", "packages-000000000000.Ab3d", "cann-of-mine", "cann-111111111111"
    folders = [ROOT / ".cache/npu" / name for name in names]
    for folder, days in zip(folders, (8, 8, 8, 6), strict=True):
        folder.mkdir()
        os.utime(folder, times=(time.time() - days * 86_400,) * 2)
    asked_for = vendors()["PYTHONPATH"]
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    assert vendors()["PYTHONPATH"] == asked_for
    for folder in folders[2:]:
        folder.rmdir()
