"""Who is where: replicas, tensor-parallel ranks, and even cuts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.allocation.layout import Layout, even_bounds


def test_eight_ranks_of_tensor_parallel_size_4_are_two_replicas() -> None:
    layout = Layout(world_size=8, tensor_parallel_size=4)
    assert layout.replicas == 2
    assert [layout.replica_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [layout.tensor_rank_of(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert layout.leaders == (0, 4)


@settings(deadline=None)
@given(replicas=st.integers(1, 64), tp=st.integers(1, 64))
def test_replica_and_tensor_rank_name_a_rank_and_a_leader_has_tensor_rank_0(
    replicas: int, tp: int
) -> None:
    layout = Layout(world_size=replicas * tp, tensor_parallel_size=tp)
    places = [
        (layout.replica_of(rank), layout.tensor_rank_of(rank)) for rank in range(replicas * tp)
    ]
    assert places == [(replica, place) for replica in range(replicas) for place in range(tp)]
    assert [places[leader] for leader in layout.leaders] == [
        (replica, 0) for replica in range(replicas)
    ]


@pytest.mark.parametrize(
    ("count", "parts", "bounds"),
    [
        (8, 2, [(0, 4), (4, 8)]),
        (7, 3, [(0, 2), (2, 4), (4, 7)]),
        (2, 3, [(0, 0), (0, 1), (1, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
    ],
)
def test_even_bounds_of_known_counts(count: int, parts: int, bounds: list[tuple[int, int]]) -> None:
    assert even_bounds(count, parts) == bounds


@settings(deadline=None)
@given(count=st.integers(0, 1000), parts=st.integers(1, 64))
def test_even_bounds_cover_all_in_order_and_differ_by_one_at_most(count: int, parts: int) -> None:
    bounds = even_bounds(count, parts)
    assert [item for start, stop in bounds for item in range(start, stop)] == list(range(count))
    lengths = [stop - start for start, stop in bounds]
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
