"""Transfer of trained weights into the rollout engine, or to files."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.checkpoint.adapter_export import ExportedAdapters
from mindrl.checkpoint.adapter_folder import adapter_config
from mindrl.checkpoint.export import HeadScope, exported_model, writing
from mindrl.models.adapters import full_adapters
from mindrl.models.decoder import DType
from mindrl.models.placement import Box, index_of
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.platform.rendezvous import own_store
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import ReshardPlan, Topology, plan_reshard
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
class WeightExport:
    """Export of a trained model's weights to files."""

    model: TrainingEngine
    dtype: DType
    """Data type of the files; an engine may use another."""
    topology: Topology
    bucket_bytes: int
    """Maximum bytes of messages that a rank has in flight."""
    timeout_seconds: float
    """Longest wait for a peer."""
    name: str
    """Name of these weights, the same on all ranks and unique."""
    scores: HeadScope = "token"
    """What a value head scores; a vocabulary has none."""
    exports: int = 0

    def write(self, folder: Path, record: Mapping[str, object] | None = None) -> None:
        """Write the weights to a Hugging Face folder, on the model's rank 0.

        A collective over the model's ranks. An older folder is replaced. `record` has further
        information about the weights.

        Raises:
            OutputError: The folder cannot be written.
        """
        with self.model.active():
            self._write(folder, record)

    def _write(self, folder: Path, record: Mapping[str, object] | None) -> None:
        route, model = self._route, self.model
        source, table = TrainingWeights.of(model), route.target.table(dist.get_rank())
        adapters = None if model.adapters is None else self._gathered(model.adapters)
        with exported_model(
            model.folder, folder, table, dtype=self.dtype, scores=self.scores
        ) as sink:
            if record is not None:
                sink.write_record(record)
            route.open(model.device_type, f"{self.name} {self.exports}").run(source, sink)
            if adapters is not None and sink.folder is not None:
                with writing(folder):
                    adapters.write(sink.folder)
        self.exports += 1
        dist.barrier()

    def _gathered(self, adapters: Adapters) -> ExportedAdapters:
        """Gather the adapters on rank 0."""
        model, low_rank = self.model, adapters.low_rank
        ranks, dtype = dist.get_world_size(), self.dtype
        whole = full_adapters(model.description, low_rank, world_size=ranks, dtype=dtype)
        config = adapter_config(low_rank, model.folder)
        found = ExportedAdapters(whole.table(dist.get_rank()), dtype, config)
        way = self._routed(adapters.sharding, whole)
        name = f"{self.name} adapters {self.exports}"
        way.open(model.device_type, name).run(TrainingWeights(adapters.tensors()), found)
        return found

    @cached_property
    def _route(self) -> WeightRoute:
        """Route of every tensor to rank 0, planned at the first export."""
        model = self.model
        whole = full_sharding(
            model.description,
            world_size=dist.get_world_size(),
            holders=[0],
            dtype=self.dtype,
            head=model.head,
        )
        return self._routed(model.sharding, whole)

    def _routed(self, source: Sharding, whole: Sharding) -> WeightRoute:
        plan = plan_reshard(source, whole, self.topology, bucket_bytes=self.bucket_bytes)
        seconds = self.timeout_seconds
        return WeightRoute(source=source, target=whole, plan=plan, timeout_seconds=seconds)


@dataclass
class WeightSync:
    """Transfer of the actor's weights into the engine: planned once, run repeatedly.

    Needs the default process group.
    """

    model: TrainingEngine | None
    """None on a rank without the actor."""
    rollout: RolloutEngine
    route: WeightRoute
    """From the model to the engine."""
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
        """Return the weights of a model; none on a rank without it."""
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
