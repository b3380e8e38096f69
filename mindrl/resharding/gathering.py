"""Transfer of whole tensors to rank 0, which broadcasts each of them to servers."""

from dataclasses import dataclass

import numpy as np

from mindrl.models.decoder import DType
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding, full_sharding, table_bytes
from mindrl.resharding.plan import ReshardPlan, Topology, plan_reshard
from mindrl.resharding.slices import Integers


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Whole tensors on their way to rank 0 of the training ranks, and from there to servers."""

    source: Sharding
    """The weights in training."""
    whole: Sharding
    """The same with every tensor on rank 0."""
    plan: ReshardPlan
    """Transfer between the two."""
    order: tuple[str, ...]
    """Tensors in the order in which they become complete, and are broadcast."""
    waiting_bytes: int
    """Maximum bytes of tensors on rank 0 that have begun to arrive and are not yet broadcast."""

    @classmethod
    def of(
        cls,
        source: Sharding,
        model: ModelDescription,
        dtype: DType,
        topology: Topology,
        bucket_bytes: int,
    ) -> "Broadcast":
        """Plan the transfer of a model; arguments as of `plan_reshard`."""
        whole = full_sharding(model, world_size=len(source.held_by), holders=[0], dtype=dtype)
        plan = plan_reshard(source, whole, topology, bucket_bytes=bucket_bytes)
        starts, ends = dict[str, int](), dict.fromkeys(whole.table(0), 0)
        moment, flying = 0, list[str]()
        for step in plan.of_rank(0):
            moment += 1
            posted = [part.slice.target.name for each in step.receives.values() for part in each]
            starts |= {name: moment for name in posted if name not in starts}
            for name in (part.slice.target.name for part in step.copies):
                moment += 1
                starts.setdefault(name, moment)
                ends[name] = moment
            # The messages of a round are awaited after the copies of the next.
            moment += 1
            ends |= dict.fromkeys(flying, moment)
            flying = posted
        ends |= dict.fromkeys(flying, moment + 1)
        return cls(
            source=source,
            whole=whole,
            plan=plan,
            order=tuple(sorted(ends, key=ends.__getitem__)),
            waiting_bytes=_most_waiting(whole, starts, ends),
        )

    @property
    def staging(self) -> Integers:
        """Maximum bytes of each rank for messages in flight and for waiting tensors."""
        found = self.plan.peak_staging.copy()
        found[0] += self.waiting_bytes
        return found


def _most_waiting(whole: Sharding, starts: dict[str, int], ends: dict[str, int]) -> int:
    """Return the maximum bytes of tensors between their first moment and their last."""
    change = np.zeros(max(ends.values(), default=0) + 2, dtype=np.int64)
    for name, entry in whole.table(0).items():
        nbytes = table_bytes({name: entry}, whole.dtype)
        change[starts.get(name, 0)] += nbytes
        change[ends[name] + 1] -= nbytes
    return int(change.cumsum().max(initial=0))
