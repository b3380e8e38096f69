"""Device meshes and process groups of a layout, for any order of the ranks."""

from collections.abc import Collection, Mapping
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.training.context import context_groups, own_group


class Meshes:
    """The groups that a rank belongs to."""

    def __init__(
        self, layout: TrainLayout, device_type: str, *, fsdp_size: int | None = None
    ) -> None:
        """Create the groups. A collective over all ranks.

        Args:
            layout: Layout of the model.
            device_type: Device of its weights.
            fsdp_size: Number of ranks that share the rows of a weight; other ranks hold copies.
                None shares the rows over all ranks that would hold the same.
        """
        self.layout = layout
        order = layout.dense_order
        ranks = ranks_by_place(order, {"pp": ("pp",), "shard": ("dp", "cp"), "tp": ("tp",)})
        names: tuple[str, ...] = ("pp", "shard", "tp")
        if fsdp_size is not None:
            ranks = ranks.view(layout.pp, -1, fsdp_size, layout.tp)
            names = ("pp", "replica", "shard", "tp")
        self.root = DeviceMesh(device_type, ranks, mesh_dim_names=names)
        self.data = self.root["shard"] if fsdp_size is None else self.root["replica", "shard"]
        """Ranks that FSDP2 shards weights over; with two dimensions the first replicates."""
        self.tensor = self.root["tp"]
        self.pipeline = self.root["pp"].get_group()
        self.replicas = own_group(order.groups(("dp", "cp")))
        """Ranks of a stage that read other sequences, or other tokens of the same sequences."""
        self.context = own_group(order.groups(("cp",))) if layout.cp > 1 else None
        """Ranks that share the tokens of sequences; None for a single rank."""
        self.context_groups = context_groups(layout, self.context)
        """Groups of `context` that trade heads, and that pass keys on."""

    def tokens(self) -> dist.ProcessGroup | None:
        """Return the ranks that share the tokens of sequences, tensor-parallel ranks included.

        None for a single rank. A collective over all ranks.
        """
        if self.layout.tp == 1:
            return self.context
        return own_group(self.layout.dense_order.groups(("cp", "tp")))

    def twins(self, heads: int) -> dist.ProcessGroup | None:
        """Return the tensor-parallel ranks with the same key-value heads; None if no two share any.

        A collective over all ranks.
        """
        copies = self.layout.tp // heads
        if copies <= 1:
            return None
        groups = self.layout.dense_order.groups(("tp",))
        runs = [group[at : at + copies] for group in groups for at in range(0, len(group), copies)]
        return own_group(runs)

    def ends(self) -> dist.ProcessGroup | None:
        """Return the ranks at the same place in the first and in the last chunk.

        None for stages in between, and if one rank has both chunks. A collective over all ranks.
        """
        last = self.layout.last_stage
        if last == 0:
            return None
        return own_group(
            [[group[0], group[last]] for group in self.layout.dense_order.groups(("pp",))]
        )


class ExpertMeshes:
    """Which ranks have which experts of a layer, and which have the same ones."""

    def __init__(self, layout: TrainLayout, device_type: str) -> None:
        """Create the groups. A collective over all ranks."""
        order = layout.experts_order
        self.ep, self.etp = layout.ep, layout.etp
        places = {"pp": ("pp",), "shard": ("dp",), "part": ("ep", "etp")}
        root = DeviceMesh(device_type, ranks_by_place(order, places), mesh_dim_names=tuple(places))
        self.data = root["shard"]
        """Ranks that FSDP2 shards the same experts over."""
        self.group = root["part"].get_group() if layout.ep * layout.etp > 1 else None
        """Ranks that together have all experts; None for a single rank."""
        first = order.groups(("ep", "etp"))[0]
        self.parts = [order.coordinates[rank]["ep"] for rank in first]
        """Which of the `ep` parts of the experts each rank of the group has."""


@cache
def expert_meshes_of(layout: TrainLayout, device_type: str) -> ExpertMeshes:
    """Return a layout's expert groups, cached as in `meshes_of`. A collective."""
    return ExpertMeshes(layout, device_type)


@cache
def meshes_of(layout: TrainLayout, device_type: str, fsdp_size: int | None = None) -> Meshes:
    """Return the groups of a layout, cached: models of the same layout share them. A collective."""
    return Meshes(layout, device_type, fsdp_size=fsdp_size)


def ranks_by_place(order: RankOrder, dimensions: Mapping[str, Collection[str]]) -> torch.Tensor:
    """Return the ranks as a tensor, indexed by their places in groups of the order's dimensions.

    A rank is the sum of its digits' values: ranks rise along each dimension, and a place does not
    depend on other places.
    """
    places = [
        {rank: at for group in order.groups(names) for at, rank in enumerate(group)}
        for names in dimensions.values()
    ]
    ranks = torch.empty([max(place.values()) + 1 for place in places], dtype=torch.int)
    for rank in range(order.world_size):
        ranks[tuple(place[rank] for place in places)] = rank
    return ranks
