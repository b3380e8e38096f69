"""The PyTorch-native engine of one model: reads sequences, and trains if it has an optimizer."""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mindrl.models.decoder import EMBEDDING, HEAD
from mindrl.models.placement import ShardingTable
from mindrl.training.archon.adapters import NetworkAdapters
from mindrl.training.archon.chunks import chunks_of_rank
from mindrl.training.archon.experts import Mixture
from mindrl.training.archon.learning import Learning
from mindrl.training.archon.meshes import meshes_of
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.archon.own_network import OwnNetwork
from mindrl.training.archon.pipeline import Hidden, Pipeline
from mindrl.training.archon.sharding import archon_factors
from mindrl.training.archon.vision import SeeingNetwork
from mindrl.training.context import own_group
from mindrl.training.packs import Pack
from mindrl.training.reading import Reader
from mindrl.training.routes import RouteGroups
from mindrl.training.settings import EngineSettings
from mindrl.training.skeleton import EngineSkeleton, HeadGroups
from mindrl.training.state_slice import ReadState, StateKind, StateSlice

logger = logging.getLogger(__name__)


class ArchonEngine(EngineSkeleton[EngineSettings, Learning]):
    """Trains this rank's part of a model; see `TrainingEngine`."""

    adapters: NetworkAdapters | None = None

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        parameters = self._parameters()
        return {name: parameters[name].to_local().detach() for name in self.table}

    def _weights(self) -> Sequence[Tensor]:
        # FSDP2 also pads the storage of a parameter of which this rank holds no element.
        return [each.to_local().detach() for each in self._parameters().values()]

    def complete_weights(self) -> None:
        """Gather the adapters' factors that merging them needs: see `TrainingEngine`."""
        super().complete_weights()
        if self.adapters is not None:
            self.adapters.gather()

    def restore(self, updates: int, read: ReadState) -> None:
        """Load weights and moments: see `TrainingEngine`."""
        super().restore(updates, read)
        for network in self.networks.values():
            network.forget()
        if self.adapters is not None:
            self.adapters.gather()

    def network_of(self, part: StagePart, settings: NetworkSettings) -> Network:
        """Return a part of the model on the meta device."""
        other = self.description.other
        if other and other.own:
            return OwnNetwork(self.folder, self.description, part, settings)
        if other and other.vision:
            images = self.settings.images
            return SeeingNetwork(self.folder, self.description, part, settings, images)
        return Network(self.description, part, settings)

    def _build(self) -> None:
        settings = self.settings
        self.meshes = meshes_of(
            settings.layout, settings.device_type, settings.learning.archon.fsdp_size
        )
        stage = settings.layout.dense_order.coordinates[dist.get_rank()]["pp"]
        self.networks = chunks_of_rank(
            self.description, settings, self.meshes, stage, self.network_of
        )
        layout = settings.layout
        logger.info(
            "Initialized Archon engine with parallel dims: "
            "pp=%d, dp_shard=%d, tp=%d, cp=%d, ep=%d, etp=%d",
            *(layout.pp, layout.dp, layout.tp, layout.cp, layout.ep, layout.etp),
        )
        self.balance = next(iter(self.networks.values())).balance
        self.twins = dict(chain.from_iterable(n.twins().items() for n in self.networks.values()))
        self.pipeline = self._piped()
        self.ends = self.meshes.ends() if self._is_head_a_copy else None
        self.adapters = self._adapters()
        tables = {**self.table, **(self.adapters.table if self.adapters else {})}
        for name, parameter in self._parameters().items():
            found, entry = tuple(parameter.to_local().shape), tables.get(name)
            wanted = entry.shape if entry else found if 0 in found else None
            assert found == wanted, f"{name}: the network has {found}, the table has {wanted}"

    def _adapters(self) -> NetworkAdapters | None:
        """Return the adapters of the networks; None if their weights are trained."""
        settings, low_rank = self.settings, self.settings.low_rank
        if low_rank is None:
            return None
        shardings = archon_factors(
            *(self.description, settings.layout, low_rank),
            base=self.sharding,
            fsdp_size=settings.learning.archon.fsdp_size,
        )
        return NetworkAdapters.of(self.networks.values(), shardings, low_rank, settings.device_type)

    def _prepared(self, updates: int | None) -> Learning | None:
        if self.adapters is not None:
            self._fill_factors(self.adapters)
            self.adapters.gather()
        if updates is None:
            return None
        parameters = self._parameters()
        copies = {name: self._copies(name, each) for name, each in parameters.items()}
        more = () if self.adapters is None else self.adapters.whole.values()
        return Learning(parameters, copies, self.settings.learning, updates, moved=more)

    def _state_slices(self) -> Iterator[StateSlice]:
        parameters, (local, table) = self._parameters(), self._trained()
        for index, (name, entry) in enumerate(table.items()):
            kept: dict[StateKind, Tensor] = {"weight": local[name]}
            if self.learning is not None and name in self.learning.leaves:
                moments = self.learning.moments(self.learning.leaves[name])
                kept |= {"exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
            is_ours = self._is_ours(name, parameters[name], index)
            for placement in entry.placements:
                for kind, stored in kept.items():
                    yield StateSlice(
                        tensor=placement.tensor,
                        kind=kind,
                        box=placement.source,
                        stored=stored,
                        run=(0, stored.numel()),
                        shape=entry.shape,
                        local=placement.local,
                        axes=placement.axes,
                        is_ours=is_ours,
                    )

    def _trained(self) -> tuple[dict[str, Tensor], ShardingTable]:
        """Return the tensors that a checkpoint needs, and their table."""
        if self.adapters is None:
            return self.local_tensors(), self.table
        return self.adapters.tensors(), self.adapters.table

    def _run_forward(self, packs: Sequence[Pack[Any]], read: Reader) -> list[Tensor]:
        return self.pipeline.forward(packs, read)

    def _run_update(self, learning: Learning, packs: Sequence[Pack[Any]], loss: Reader) -> None:
        if self.balance is not None:
            self.balance.begin(sum(not pack.is_idle for pack in packs))
        self.pipeline.update(packs, loss)
        if self._is_head_a_copy and {EMBEDDING, HEAD} & learning.leaves.keys():
            learning.join((EMBEDDING, HEAD), self.ends)

    def _pack_count(self, count: int, *, learns: bool) -> int:
        # FSDP2 gathers weights over ranks in every pass, and an update needs the number of packs
        # that its pipeline schedule supports.
        most = torch.tensor(count, device=self.device_type)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return self.pipeline.packs_of_update(int(most)) if learns else int(most)

    def _follow_routes(self) -> list[int]:
        layers: list[int] = []
        for network in self.networks.values():
            for at, layer in zip(network.part.layers, network.layers, strict=True):
                if isinstance(layer.mlp, Mixture):
                    layer.mlp.index = len(layers)
                    layers.append(at)
        return layers

    def _route_groups(self) -> RouteGroups:
        order, ranks = self.settings.layout.dense_order, self._token_ranks
        return RouteGroups(
            tokens=self.meshes.tokens(),
            replicas=own_group(order.groups(("dp",))),
            cut=(ranks, self.meshes.tensor.get_local_rank() if ranks > 1 else 0),
        )

    def _head_groups(self) -> HeadGroups:
        meshes = self.meshes
        return HeadGroups(meshes.tensor.get_group(), meshes.context, meshes.replicas)

    @property
    def _token_ranks(self) -> int:
        return self.pipeline.hidden.ranks

    def _piped(self) -> Pipeline:
        layout, settings = self.settings.layout, self.settings
        is_cut = next(iter(self.networks.values())).parallel.is_cut
        return Pipeline(
            networks=self.networks,
            layout=layout,
            schedule=settings.learning.archon.schedule(layout.vpp),
            group=self.meshes.pipeline,
            hidden=Hidden(
                size=self.description.hidden_size,
                dtype=torch.bfloat16 if settings.training.bf16 else torch.float32,
                ranks=layout.tp if is_cut else 1,
            ),
            device_type=settings.device_type,
        )

    def _balance(self, packs: int) -> dict[str, float]:  # noqa: ARG002
        moe = self.description.moe
        if moe is None or self.balance is None:
            return {}
        return self.balance.metrics(self.description.num_hidden_layers - len(moe.dense_layers))

    def _parameters(self) -> dict[str, DTensor]:
        each = (network.named_parameters() for network in self.networks.values())
        found = dict(chain.from_iterable(each))
        assert all(isinstance(each, DTensor) for each in found.values()), "weights are borrowed"
        return found  # type: ignore[return-value]

    def _is_ours(self, name: str, parameter: DTensor, index: int) -> bool:
        """Return whether this rank writes a tensor that several ranks hold, in turns by index."""
        if name == HEAD and self._is_head_a_copy:
            return False
        twins, mesh = self.twins.get(name), parameter.device_mesh
        return (twins is None or twins.rank() == 0) and all(
            mesh.get_local_rank(dim) == index % mesh.size(dim)
            for dim, placement in enumerate(parameter.placements)
            if placement.is_replicate()
        )

    def _copies(self, name: str, parameter: DTensor) -> int:
        """Return how many ranks hold the same part of a parameter."""
        twins, mesh = self.twins.get(name), parameter.device_mesh
        # If both FSDP2 and tensor parallelism cut a dimension, its placement is not `Shard`, but no
        # copy.
        sizes = [
            mesh.size(dim)
            for dim, placement in enumerate(parameter.placements)
            if placement.is_replicate()
        ]
        ends = 2 if self._is_head_a_copy and name in (EMBEDDING, HEAD) else 1
        return prod(sizes) * ends * (1 if twins is None else twins.size())

    @property
    def _is_head_a_copy(self) -> bool:
        """Whether the last chunk has a copy of the embedding."""
        is_tied = self.description.tie_word_embeddings and self.head == "vocabulary"
        return is_tied and self.settings.layout.pp > 1
