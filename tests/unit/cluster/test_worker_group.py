"""Where the workers of a run may be."""

import pytest

from mindrl.cluster.worker_group import refuse_misplaced
from mindrl.cluster.worker_process import Identity
from mindrl.errors import ClusterError

EIGHT_ON_TWO_NODES = [(node, device) for node in "ab" for device in "0123"]


def identities(places: list[tuple[str, str | None]]) -> list[Identity]:
    return [
        Identity(pid=rank, node=f"host-{node}", node_id=node, device=device, address=None)
        for rank, (node, device) in enumerate(places)
    ]


@pytest.mark.parametrize(
    "places",
    [
        EIGHT_ON_TWO_NODES,
        EIGHT_ON_TWO_NODES[:6],
        [("b", "3"), ("b", "1"), ("b", "0"), ("b", "2"), ("a", "1")],
        # Ray does not name CPU slots.
        [("a", None)] * 4 + [("b", None)] * 4,
    ],
)
def test_ranks_that_are_node_by_node_are_taken_as_they_are(
    places: list[tuple[str, str | None]],
) -> None:
    refuse_misplaced(identities(places), 4)


@pytest.mark.parametrize(
    ("places", "rank"),
    [
        # Each rank one place further on: rank 3 is on the next node already.
        (EIGHT_ON_TWO_NODES[1:] + EIGHT_ON_TWO_NODES[:1], 3),
        ([*EIGHT_ON_TWO_NODES[:4], *EIGHT_ON_TWO_NODES[:4]], 4),
        ([("a", "0"), ("a", "1"), ("a", "0"), ("a", "2")], 2),
        ([("a", None)] * 4 + [("b", None)] * 3 + [("a", None)], 7),
    ],
    ids=["shifted", "one node", "one device", "last"],
)
def test_the_first_rank_on_a_wrong_node_or_on_a_peers_device_is_named(
    places: list[tuple[str, str | None]], rank: int
) -> None:
    first = rank - rank % 4
    with pytest.raises(
        ClusterError,
        match=rf"^rl_config\.actor_resource\.npus_per_node=4: ranks {first} to {first + 3} belong "
        rf"on a node .* rank {rank} on node host-{places[rank][0]}, device {places[rank][1]}, ",
    ):
        refuse_misplaced(identities(places), 4)
