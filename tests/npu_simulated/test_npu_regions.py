"""Memory that leaves the device: pinned places, copies on a stream of their own, no room."""

import pytest
import torch
from regions_probe import MIB, SIZES_MIB, Swapped
from simulated import Machine, SimulatedNpus

pytestmark = pytest.mark.npu_simulated

LATE = Machine(delay_us=3000)


def test_a_region_that_leaves_while_it_is_computed_comes_back_to_the_bit_however_late_all_is(
    simulated_npus: SimulatedNpus,
) -> None:
    (at_once,), (late,) = (
        simulated_npus.run("regions_probe:swaps", machine=machine) for machine in (Machine(), LATE)
    )
    torch.manual_seed(1)
    for index, size in enumerate(SIZES_MIB):
        expected = torch.randn(size * MIB // 4)
        for _ in range(3):
            expected = expected * 1.5 + 1.0
        assert torch.equal(at_once.values[index], expected)
        assert torch.equal(late.values[index], expected)
    for found in (at_once, late):
        _check_the_account(found)


def _check_the_account(found: Swapped) -> None:
    assert found.pinned
    assert found.copied_bytes == [sum(SIZES_MIB) * MIB] * 3
    assert found.stayed_bytes == 0


def test_a_region_that_comes_back_while_it_leaves_is_whole(simulated_npus: SimulatedNpus) -> None:
    (found,) = simulated_npus.run("regions_probe:back_before_it_left", machine=LATE)
    torch.manual_seed(1)
    for tensor, size in zip(found, SIZES_MIB, strict=True):
        assert torch.equal(tensor, torch.randn(size * MIB // 4) + 1.0)


def test_a_copy_on_the_host_is_not_written_while_a_checkpoint_reads_it(
    simulated_npus: SimulatedNpus,
) -> None:
    bounds = simulated_npus.run("regions_probe:read_while_it_leaves_again", machine=LATE)
    assert bounds == [(1.0, 1.0)]


def test_a_copy_waits_for_what_the_device_computes(simulated_npus: SimulatedNpus) -> None:
    assert simulated_npus.run("regions_probe:copies_of_what_is_computed", machine=LATE) == [0]


def test_regions_take_turns_on_a_device_with_room_for_one_and_a_block_less_is_too_little(
    simulated_npus: SimulatedNpus,
) -> None:
    # Each storage takes 32 bytes more, in whole pages of 2 MiB: 14 + 12 + 18.
    machine = Machine(capacity_bytes=44 * MIB)
    assert simulated_npus.run("regions_probe:turns", False, machine=machine) == [("", [True, True])]
    ((said, whole),) = simulated_npus.run("regions_probe:turns", True, machine=machine)
    needs = "actor_weights needs 38.0 MiB more"
    assert said == f"out of device memory: {needs}; on the device: no region"
    # What had come of it left again, and the other came.
    assert whole == [False, True]
