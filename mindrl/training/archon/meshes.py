"""The ranks of a layout as torch's meshes, in any order of the ranks."""

from collections.abc import Collection, Mapping
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder


class Meshes:
    """The groups that a rank belongs to."""

    def __init__(
        self, layout: TrainLayout, device_type: str, *, fsdp_size: int | None = None
    ) -> None:
        """Make the groups. A collective over all ranks.

        Args:
            layout: Of the model.
            device_type: Of its weights.
            fsdp_size: Ranks that share the rows of a weight, others hold copies; None is all that
                would hold the same.
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
        """The ranks that FSDP2 shards weights over; of two dimensions the first holds copies."""
        self.tensor = self.root["tp"]
        self.pipeline = self.root["pp"].get_group()
        self.replicas = _own_group(order.groups(("dp", "cp")))
        """The ranks of a stage that read other sequences, or other tokens of them."""
        self.context = _own_group(order.groups(("cp",))) if layout.cp > 1 else None
        """The ranks that share the tokens of sequences; None for one alone."""

    def tokens(self) -> dist.ProcessGroup | None:
        """Return the ranks that share the tokens of sequences where tensor-parallel ones do too.

        None for one alone. A collective over all ranks.
        """
        if self.layout.tp == 1:
            return self.context
        return _own_group(self.layout.dense_order.groups(("cp", "tp")))

    def twins(self, heads: int) -> dist.ProcessGroup | None:
        """Return the tensor-parallel ranks that have the same key-value heads, where several do.

        A collective over all ranks.
        """
        copies = self.layout.tp // heads
        if copies <= 1:
            return None
        groups = self.layout.dense_order.groups(("tp",))
        runs = [group[at : at + copies] for group in groups for at in range(0, len(group), copies)]
        return _own_group(runs)

    def ends(self) -> dist.ProcessGroup | None:
        """Return the ranks that have the same places in the first and in the last chunk.

        None between those, and where a rank has both. A collective over all ranks.
        """
        last = self.layout.last_stage
        if last == 0:
            return None
        return _own_group(
            [[group[0], group[last]] for group in self.layout.dense_order.groups(("pp",))]
        )


class ExpertMeshes:
    """Who has which experts of a layer, and who has the same."""

    def __init__(self, layout: TrainLayout, device_type: str) -> None:
        """Make the groups. A collective over all ranks."""
        order = layout.experts_order
        self.ep, self.etp = layout.ep, layout.etp
        places = {"pp": ("pp",), "shard": ("dp",), "part": ("ep", "etp")}
        root = DeviceMesh(device_type, ranks_by_place(order, places), mesh_dim_names=tuple(places))
        self.data = root["shard"]
        """The ranks that FSDP2 shards the same experts over."""
        self.group = root["part"].get_group() if layout.ep * layout.etp > 1 else None
        """The ranks that have all experts between them; None for one alone."""
        first = order.groups(("ep", "etp"))[0]
        self.parts = [order.coordinates[rank]["ep"] for rank in first]
        """Which of the `ep` parts of the experts each rank of the group has."""


@cache
def expert_meshes_of(layout: TrainLayout, device_type: str) -> ExpertMeshes:
    """Return the groups of a layout that share experts, as `meshes_of`. A collective."""
    return ExpertMeshes(layout, device_type)


@cache
def meshes_of(layout: TrainLayout, device_type: str, fsdp_size: int | None = None) -> Meshes:
    """Return the groups of a layout, which models of the same layout share. A collective."""
    return Meshes(layout, device_type, fsdp_size=fsdp_size)


def ranks_by_place(order: RankOrder, dimensions: Mapping[str, Collection[str]]) -> torch.Tensor:
    """Return the ranks of an order by their places in some dimensions, each of one or more of its.

    Contributions of the digits of a rank add up: along each dimension ranks rise, and a place is
    the same whatever the other places are.
    """
    places = [
        {rank: at for group in order.groups(names) for at, rank in enumerate(group)}
        for names in dimensions.values()
    ]
    ranks = torch.empty([max(place.values()) + 1 for place in places], dtype=torch.int)
    for rank in range(order.world_size):
        ranks[tuple(place[rank] for place in places)] = rank
    return ranks


def _own_group(groups: list[list[int]]) -> dist.ProcessGroup:
    own: dist.ProcessGroup
    own, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
    return own
