"""Transfer of trained weights into the rollout engine."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.placement import Box, index_of
from mindrl.models.sharding import Sharding
from mindrl.platform.rendezvous import own_store
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import ReshardPlan
from mindrl.resharding.reshard import Reshard
from mindrl.rollout.engine import RolloutEngine
from mindrl.training.engine import Adapters, TrainingEngine


@dataclass(frozen=True, kw_only=True)
class WeightRoute:
    """Planned transfer of a model's weights over the ranks of the current world."""

    source: Sharding
    """Current sharding."""
    target: Sharding
    """Required sharding."""
    plan: ReshardPlan
    timeout_seconds: float
    """Longest wait for a peer."""

    def open(self, device_type: str, name: str) -> Reshard:
        """Return this rank's part, with its own channel. Needs the default process group.

        `name` is the same on all ranks and unique to this transfer.
        """
        rank, group = dist.get_rank(), dist.group.WORLD
        assert group is not None
        channel = Channel(group, own_store(name), torch.device(device_type), self.timeout_seconds)
        return Reshard(self.plan, channel, self.source.table(rank), self.target.table(rank))


@dataclass
class WeightSync:
    """Transfer of the actor's weights into the engine: planned once, run repeatedly.

    Needs the default process group.
    """

    model: TrainingEngine | None
    """None on a rank without the actor."""
    rollout: RolloutEngine
    route: WeightRoute
    """Route from the model to the engine."""
    verify: Literal["off", "first", "always"]
    """Which reshards to verify: the received weights are compared."""
    on_last_read: Callable[[Tensor], None] | None
    """Offloads the weights that share a tensor's storage, once all of them have been read. None
    keeps them on the device."""
    name: str = "reshard"
    """Name of these weights, the same on all ranks and unique."""

    def __post_init__(self) -> None:
        """Open the route."""
        self.transfer = self.route.open(self.rollout.device_type, self.name)
        self.verified = self.verify == "off"

    def reshard(self) -> None:
        """Transfer the weights into the engine. A collective over all ranks.

        Raises:
            ReshardError: A peer does not respond, or the received weights differ from those sent.
        """
        sink = self.rollout.weight_sink()
        wanted = self.route.target.table(dist.get_rank())
        expected = {name: entry.shape for name, entry in wanted.items()}
        found = sink.shapes()
        assert expected == found, sorted(expected.items() ^ found.items())[:6]
        source = TrainingWeights.of(self.model, self.on_last_read)
        self.transfer.run(source, sink, verify=not self.verified)
        sink.finish()
        self.verified = self.verify != "always"

    def bytes_moved(self) -> dict[str, int]:
        """Return a reshard's bytes on this rank, the minimum to receive, and the peak in flight."""
        plan, rank = self.route.plan, dist.get_rank()
        return {
            "sent": int(plan.sent[rank]),
            "received": int(plan.received[rank]),
            "local": int(plan.copied[rank]),
            "needed": int(plan.lower_bound[rank]),
            "in_flight": int(plan.peak_staging[rank]),
        }


class TrainingWeights:
    """Local tensors for one transfer, merged with their adapters."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        adapters: Adapters | None = None,
        on_last_read: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.tensors = tensors
        self.adapters = adapters
        self.on_last_read = on_last_read
        self.unread = Counter(map(_storage_of, self.tensors.values()))

    @classmethod
    def of(
        cls, model: TrainingEngine | None, on_last_read: Callable[[Tensor], None] | None = None
    ) -> "TrainingWeights":
        """Return the weights of a model; no tensors on a rank without it."""
        if model is None:
            return cls({})
        return cls(model.local_tensors(), model.adapters, on_last_read)

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a local tensor, on the device."""
        part = self.tensors[name][index_of(box)]
        added = None if self.adapters is None else self.adapters.difference(name, box)
        return part if added is None else (part.float() + added).to(part.dtype)

    def release(self, name: str) -> None:
        """Offload a storage after its last tensor was read.

        Many weights share one: for example all dense ones, and all experts.
        """
        if self.on_last_read is None:
            return
        tensor = self.tensors[name]
        self.unread[_storage_of(tensor)] -= 1
        if not self.unread[_storage_of(tensor)]:
            self.on_last_read(tensor)


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
