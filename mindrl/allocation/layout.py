"""Which rank does what: replicas and their tensor-parallel ranks. Pure Python."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks of one side of the colocated worker; tensor-parallel ranks are neighbours."""

    world_size: int
    tensor_parallel_size: int

    @property
    def replicas(self) -> int:
        """Groups of ranks that each hold one whole model."""
        return self.world_size // self.tensor_parallel_size

    def replica_of(self, rank: int) -> int:
        """Return the replica that a rank belongs to."""
        return rank // self.tensor_parallel_size

    def tensor_rank_of(self, rank: int) -> int:
        """Return a rank's place within its replica."""
        return rank % self.tensor_parallel_size

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each replica, in the order of the replicas."""
        return tuple(range(0, self.world_size, self.tensor_parallel_size))


def even_bounds(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut `count` items into `parts` runs whose lengths differ by at most one."""
    cuts = [count * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))
