"""Where the worlds of a run lie: their nodes, and how many devices of each. Pure Python."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeMap:
    """The nodes of a run's worlds; within a world they are filled one after the other."""

    per_node: int
    """Devices of a node."""
    shares: tuple[int, ...]
    """Devices that the run takes of each node."""
    first_nodes: tuple[int, ...]
    """Of each world, the node that its ranks begin on."""

    def nodes(self, world: int, size: int) -> tuple[int, ...]:
        """Return the node of each rank of a world of so many."""
        return tuple(self.first_nodes[world] + rank // self.per_node for rank in range(size))


def placed(sizes: Sequence[int], per_node: int) -> NodeMap:
    """Give each world, in this order, the first node that has room for all of it.

    One that is larger than a node takes whole nodes, and what it leaves of its last is for others.
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
    assert sum(shares) == sum(sizes), "every rank has a device of its own"
    return NodeMap(per_node=per_node, shares=tuple(shares), first_nodes=tuple(first_nodes))
