"""Assignment of a run's worlds to nodes. Pure Python."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeMap:
    """Nodes of a run's worlds; within a world, ranks fill one node after another."""

    per_node: int
    """Devices per node."""
    shares: tuple[int, ...]
    """Devices that the run uses on each node."""
    first_nodes: tuple[int, ...]
    """Node of the first rank of each world."""

    def nodes(self, world: int, size: int) -> tuple[int, ...]:
        """Return the node of each rank of a world with `size` ranks."""
        return tuple(self.first_nodes[world] + rank // self.per_node for rank in range(size))


def placed(sizes: Sequence[int], per_node: int) -> NodeMap:
    """Assign each world, in this order, to the first node that has room for all of it.

    A world larger than a node gets new nodes; the rest of its last node is free for others.
    """
    shares: list[int] = []
    first_nodes = []
    for size in sizes:
        fitting = [node for node, taken in enumerate(shares) if taken + size <= per_node]
        first_nodes.append(fitting[0] if fitting else len(shares))
        if fitting:
            shares[fitting[0]] += size
        else:
            shares += [min(per_node, size - begin) for begin in range(0, size, per_node)]
    assert sum(shares) == sum(sizes), "every rank has its own device"
    return NodeMap(per_node=per_node, shares=tuple(shares), first_nodes=tuple(first_nodes))
