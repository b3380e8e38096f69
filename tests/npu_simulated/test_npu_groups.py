"""Collectives of the real ProcessGroupHCCL, and the reshard over it."""

from collections.abc import Sequence

import pytest
from nightly import at_night_but
from simulated import Machine, SimulatedNpus
from test_transfer import BUCKET_BYTES, DENSE, MOE, R, T, shardings

pytestmark = pytest.mark.npu_simulated

LATE = Machine(delay_us=200)


@pytest.mark.parametrize(
    "machine", at_night_but([LATE], [Machine(), LATE]), ids=["on time", "late"]
)
def test_collectives_give_what_they_should(machine: Machine, simulated_npus: SimulatedNpus) -> None:
    found = simulated_npus.run("groups_probe:collectives", ranks=3, machine=machine)
    for rank, (results, works) in enumerate(found):
        assert results == {
            "sum": [6.0] * 8,
            "max in 16 bits": [2.0] * 2,
            "async": [6.0] * 2,
            "all_gather": [0.0, 1.0, 2.0],
            "reduce_scatter": [3.0 * rank],
            "all_to_all": [0.0, 1.0, 1.0, 2.0, 2.0, 2.0],
            "broadcast": [2.0] * 2,
            "message": [float((rank - 1) % 3)] * 3,
        }
        # One for all messages, where gloo has one for each.
        assert works == 1


def test_a_sum_in_float64_is_refused(simulated_npus: SimulatedNpus) -> None:
    said = simulated_npus.run("groups_probe:sum_of_doubles", ranks=2)
    assert all("Unsupported data type at::kDouble" in text for text in said), said


def test_groups_beside_the_default_one_come_and_go_over_hccl(
    simulated_npus: SimulatedNpus,
) -> None:
    for rank, found in enumerate(simulated_npus.run("groups_probe:beside", 2, ranks=3)):
        before = (rank - 1) % 3
        assert found == [[before, before, 3.0], [10.0 + before, 10.0 + before, 3.0]]


def test_hccl_gives_up_before_torch_npu_does(simulated_npus: SimulatedNpus) -> None:
    before = simulated_npus.log.stat().st_size
    assert simulated_npus.run("groups_probe:limit_of_hccl", ranks=2) == ["108", "108"]
    # torch_npu compares both limits of a group, and warns where its own is not the later one.
    assert b"The plog may not be recorded" not in simulated_npus.log.read_bytes()[before:]


def test_a_collective_that_a_rank_does_not_join_ends_in_time(simulated_npus: SimulatedNpus) -> None:
    machine = Machine(patience_seconds=3)
    first, second, _ = simulated_npus.run(
        "groups_probe:sum_without_the_last", ranks=3, machine=machine
    )
    for said, seconds in (first, second):
        assert "nobody sent" in said
        assert 2 <= seconds < 20


def test_ranks_without_messages_take_part_in_making_the_connections(
    simulated_npus: SimulatedNpus,
) -> None:
    """HCCL connects a group in its first operation, which waits for all ranks."""
    machine = Machine(patience_seconds=10)
    found = simulated_npus.run("groups_probe:from_first_to_second", ranks=3, machine=machine)
    assert found == [[], [0.0, 1.0, 2.0, 3.0], []]


def test_a_process_that_has_no_room_for_a_group_says_so(simulated_npus: SimulatedNpus) -> None:
    machine = Machine(groups=2)
    for made, said in simulated_npus.run("groups_probe:groups_until", 4, ranks=2, machine=machine):
        assert made == 2
        assert "HCCL" in said


@pytest.mark.parametrize(
    "machine", at_night_but([LATE], [Machine(), LATE]), ids=["on time", "late"]
)
def test_weights_arrive_bit_by_bit_over_hccl(
    machine: Machine, simulated_npus: SimulatedNpus
) -> None:
    pairs = [
        shardings(DENSE, T(tp=2), R(dp=2)),
        shardings(DENSE, T(pp=2), R(tp=2), ("bfloat16", "float32")),
    ]
    transfer(simulated_npus, machine, DENSE, pairs)
    transfer(simulated_npus, machine, MOE, [shardings(MOE, T(dp=2, ep=2), R(tp=2))])


def transfer(npus: SimulatedNpus, machine: Machine, model: object, pairs: Sequence[object]) -> None:
    arguments = (model, pairs, BUCKET_BYTES)
    wrong = npus.run("transfer_probe:transferred", *arguments, ranks=2, machine=machine)
    assert wrong == [[[]] * len(pairs)] * 2


def test_a_peer_that_is_late_is_waited_for_and_one_that_is_too_late_is_named(
    simulated_npus: SimulatedNpus,
) -> None:
    """HCCL's `wait` returns at once and without an error, even if the peer has not answered."""
    (said, waited, received), _ = simulated_npus.run("groups_probe:late_by", 1.0, 20.0, ranks=2)
    assert (said, received) == ("", 1.0)
    assert 0.9 < waited < 15
    (said, waited, _), _ = simulated_npus.run("groups_probe:late_by", 9.0, 1.0, ranks=2)
    assert said == (
        "one waited 1 s for checksums of the reshard with other; other did not get this far"
    )
    assert 1 <= waited < 9
