"""The ways of trained weights: into the rollout engine, or to files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.checkpoint.export import ExportedModel
from mindrl.models.sharding import Sharding, whole_sharding
from mindrl.platform.rendezvous import own_store
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import ReshardPlan, Topology, plan_sides
from mindrl.resharding.transfer import Names, Transfer
from mindrl.rollout.vllm.engine import RolloutEngine
from mindrl.training.megatron.actor import TrainedActor
from mindrl.training.megatron.trained import TrainedModel

AnyTrained = TrainedModel[Any, Any]


@dataclass(frozen=True, kw_only=True)
class TransitSettings:
    """How weights travel."""

    rollout: Sharding
    """Who needs the actor's weights for rollout."""
    reshard: ReshardPlan
    """Their way there from the actor's layout."""
    ranks_per_node: int
    bucket_bytes: int
    timeout_seconds: float
    verify: Literal["off", "first", "always"]


class WeightExport:
    """The weights of a trained model on their way out of it."""

    def __init__(
        self, load: str, model: AnyTrained, settings: TransitSettings, *, name: str
    ) -> None:
        """Take the source. Needs the default process group.

        Args:
            load: The folder that the model came from.
            model: Whose weights.
            settings: How weights travel.
            name: Of these weights, the same on all ranks and no other's.
        """
        self.load = load
        self.model = model
        self.settings = settings
        self.name = name
        self.transfers = 0
        self.sharding: Sharding = model.model.sharding

    def export(self, folder: Path, record: Mapping[str, object] | None = None) -> None:
        """Write the weights to a Hugging Face folder, by rank 0. A collective over all ranks.

        Args:
            folder: New, or to be replaced.
            record: What else is to be known of them, for a file of the folder; None: nothing.

        Raises:
            OutputError: The folder cannot be written.
        """
        whole = self._whole
        source, table = TrainingWeights(self.model, None), whole.table(dist.get_rank())
        with ExportedModel(
            self.load, folder, table, dtype=self.sharding.dtype, record=record
        ) as sink:
            self._transfer(self._export_plan, whole).run(source, sink)

    @cached_property
    def _whole(self) -> Sharding:
        """Rank 0 with every tensor."""
        return whole_sharding(
            self.model.model.description,
            world_size=dist.get_world_size(),
            holders=[0],
            dtype=self.sharding.dtype,
            head=self.model.model.head,
        )

    @cached_property
    def _export_plan(self) -> ReshardPlan:
        """The way to rank 0, planned at the first export."""
        topology = Topology(ranks_per_node=self.settings.ranks_per_node)
        bucket_bytes = self.settings.bucket_bytes
        return plan_sides(self.sharding, self._whole, topology, bucket_bytes=bucket_bytes)

    def _transfer(self, plan: ReshardPlan, target: Sharding) -> Transfer:
        """Take this rank's part of a plan, over a channel of its own."""
        rank, group = dist.get_rank(), dist.group.WORLD
        assert group is not None
        channel = Channel(
            group,
            own_store(f"{self.name} {self.transfers}"),
            torch.device(self.model.model.settings.device_type),
            self.settings.timeout_seconds,
        )
        self.transfers += 1
        names = Names(source=tuple(self.sharding.table(rank)), target=tuple(target.table(rank)))
        return Transfer(plan, channel, names)


class WeightSync(WeightExport):
    """The actor's weights on their way into the engine: planned once, gone as often as wanted."""

    def __init__(
        self,
        load: str,
        model: TrainedActor,
        engine: RolloutEngine,
        settings: TransitSettings,
        *,
        on_last_read: Callable[[Tensor], None] | None,
        name: str = "reshard",
    ) -> None:
        """Take the planned way. Needs the default process group.

        Args:
            load: The folder that the model came from.
            model: The training side.
            engine: The rollout side.
            settings: How weights travel.
            on_last_read: Takes the weights that share a tensor's storage off the device, once all
                of them are read. None lets them stay.
            name: Of these weights, the same on all ranks and no other's.
        """
        super().__init__(load, model, settings, name=name)
        self.engine = engine
        self.source = TrainingWeights(model, on_last_read)
        self.transfer = self._transfer(settings.reshard, settings.rollout)
        self.verified = settings.verify == "off"

    def reshard(self) -> None:
        """Fill the engine's weights. A collective over all ranks.

        Raises:
            ReshardError: A peer is silent, or the weights that arrived are not those that left.
        """
        shards = self.engine.shards()
        wanted = self.settings.rollout.table(dist.get_rank())
        expected = {name: entry.shape for name, entry in wanted.items()}
        found = shards.shapes()
        assert expected == found, sorted(expected.items() ^ found.items())[:6]
        self.source.begin()
        self.transfer.run(self.source, shards, verify=not self.verified)
        shards.finish()
        self.verified = self.settings.verify != "always"

    def bytes_moved(self) -> dict[str, int]:
        """Say what a reshard does on this rank.

        Returns:
            Bytes sent, received, copied locally, needed (the fewest to receive), and the most
            that is in flight.
        """
        plan, rank = self.transfer.plan, dist.get_rank()
        return {
            "sent": int(plan.sent[rank]),
            "received": int(plan.received[rank]),
            "local": int(plan.copied[rank]),
            "needed": int(plan.lower_bound[rank]),
            "in_flight": int(plan.peak_staging[rank]),
        }


class TrainingWeights:
    """The training weights as a transfer reads them."""

    def __init__(self, model: AnyTrained, on_last_read: Callable[[Tensor], None] | None) -> None:
        """Read from a model, whose weights leave the device once they are read, or stay (None)."""
        self.model = model
        self.on_last_read = on_last_read
        self.tensors: Mapping[str, Tensor] = model.model.local_tensors()
        self.unread: dict[int, int] = {}

    def begin(self) -> None:
        """Start to count readers anew."""
        self.tensors = self.model.model.local_tensors()
        self.unread = {}
        for tensor in self.tensors.values():
            key = tensor.untyped_storage()._cdata
            self.unread[key] = self.unread.get(key, 0) + 1

    def read(self, name: str) -> Tensor:
        """Return a local tensor, on the device."""
        return self.tensors[name]

    def release(self, name: str) -> None:
        """Let a storage leave the device after its last tensor was read.

        Megatron keeps all dense weights in one storage and all experts in another.
        """
        if self.on_last_read is None:
            return
        tensor = self.tensors[name]
        key = tensor.untyped_storage()._cdata
        self.unread[key] -= 1
        if not self.unread[key]:
            self.on_last_read(tensor)
