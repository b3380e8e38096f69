"""Worlds of a run on the nodes of a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrl.layouts.placement import placed


@pytest.mark.parametrize(
    ("sizes", "shares", "first_nodes"),
    [
        # Training on 4, two replicas of 2: all on the one node.
        ([4, 2, 2], (8,), (0, 0, 0)),
        # No replica of 4 has room beside training on 6.
        ([6, 4, 4], (6, 8), (0, 1, 1)),
        # What training leaves of its last node is taken, by whoever fits.
        ([12, 8, 4], (8, 8, 8), (0, 2, 1)),
        # A replica of 16 takes two whole nodes.
        ([8, 16], (8, 8, 8), (0, 1)),
    ],
)
def test_a_world_takes_the_first_node_that_has_room_for_all_of_it(
    sizes: list[int], shares: tuple[int, ...], first_nodes: tuple[int, ...]
) -> None:
    found = placed(sizes, 8)
    assert (found.shares, found.first_nodes) == (shares, first_nodes)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 8))
def test_no_node_has_more_ranks_than_devices_and_none_is_torn_without_need(
    sizes: list[int], per_node: int
) -> None:
    found = placed(sizes, per_node)
    nodes = [found.nodes(world, size) for world, size in enumerate(sizes)]
    for node, share in enumerate(found.shares):
        assert sum(each.count(node) for each in nodes) == share <= per_node
    for size, each in zip(sizes, nodes, strict=True):
        assert len({*each}) == -(-size // per_node)
