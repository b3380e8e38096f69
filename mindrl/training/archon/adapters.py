"""Low-rank adapters on linear layers of the PyTorch-native engine (LoRA, arXiv 2106.09685).

A layer's weights are frozen; scale * B A x is added to its output, before tensor-parallel ranks
exchange it. The factors are cut as the matrix is, and FSDP2 cuts their rows as those of a weight.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from mindrl.errors import ModelError
from mindrl.models.adapters import (
    FIRST_FACTOR,
    SECOND_FACTOR,
    AdapterShardings,
    LowRank,
    local_factor_names,
    names_of_factors,
)
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Box, ShardingTable, index_of
from mindrl.models.sharding import Sharding
from mindrl.training.archon.collectives import copied
from mindrl.training.archon.network import Network
from mindrl.training.archon.tensor import Linear, TensorParallel, local


class LinearAdapter(nn.Module):
    """Adapter of one linear layer."""

    def __init__(self, linear: Any, low_rank: LowRank, parallel: TensorParallel) -> None:
        """Build the factors on the meta device."""
        super().__init__()
        weight = linear.weight
        rows, columns = weight.shape
        cut = _cut_of(weight)
        self.lora_A = parallel.parameter(low_rank.r, columns, cut=1 if cut == 1 else None)
        self.lora_B = parallel.parameter(rows, low_rank.r, cut=0 if cut == 0 else None)
        self.cut, self.scale, self.is_on = cut, low_rank.scale, True
        self.twins: dist.ProcessGroup | None = getattr(linear, "twins", None)

    def forward(self, read: Tensor, given: Tensor) -> Tensor:
        """Return the layer's output `given` plus the adapter's output for its input `read`.

        Each rank computes with its part of the cut factor, so the gradient of the other factor is
        the sum of the ranks' gradients.
        """
        if not self.is_on:
            return given
        first = local(self.lora_A, sums=self.cut == 0)
        second = local(self.lora_B, sums=self.cut == 1)
        if self.twins is not None:
            second = copied(second, self.twins)
        return given + functional.linear(functional.linear(read, first), second) * self.scale


@dataclass(frozen=True, kw_only=True)
class NetworkAdapters:
    """All adapters of this rank's networks."""

    modules: Sequence[LinearAdapter]
    factors: Mapping[str, DTensor]
    """Factors by their local names, also those of which this rank has no rows."""
    sharding: Sharding
    """Sharding of the factors."""
    table: ShardingTable
    """This rank's table of the factors."""
    low_rank: LowRank
    are_cut: bool
    """Whether FSDP2 cuts factors over several ranks."""
    whole: Mapping[str, Tensor]
    """All rows of each factor A that FSDP2 cuts, by the factor's local name. They are multiplied
    with this rank's rows of B."""

    @classmethod
    def of(
        cls,
        networks: Iterable[Network],
        shardings: AdapterShardings,
        low_rank: LowRank,
        device_type: str,
    ) -> "NetworkAdapters":
        """Find the adapters of networks, and allocate memory for the factors to gather."""
        (trained, gathered), rank = shardings, dist.get_rank()
        factors: dict[str, Any] = {
            name: parameter
            for network in networks
            for name, parameter in network.named_parameters()
            if name.endswith((FIRST_FACTOR, SECOND_FACTOR))
        }
        asked = {} if gathered is None else gathered.table(rank)
        return cls(
            modules=[
                module
                for network in networks
                for module in network.modules()
                if isinstance(module, LinearAdapter)
            ],
            factors=factors,
            sharding=trained,
            table=trained.table(rank),
            low_rank=low_rank,
            are_cut=gathered is not None,
            whole={
                name: torch.empty(entry.shape, device=device_type) for name, entry in asked.items()
            },
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors by their local names."""
        return {name: _of_rank(self.factors[name]) for name in self.table}

    @torch.no_grad()
    def gather(self) -> None:
        """Gather the factors A after they changed. A collective over the ranks that share them."""
        for name, factor in self.factors.items():
            if self.are_cut and name.endswith(FIRST_FACTOR):
                found = _gathered(factor)
                # A rank without rows of B only joins the collective.
                if name in self.whole:
                    self.whole[name].copy_(found)

    def difference(self, name: str, box: Box) -> Tensor | None:
        """Return the adapters' change to a box of a local weight, float32; None if not adapted."""
        first_name, second_name = local_factor_names(name)
        if second_name not in self.factors:
            return None
        whole = self.whole.get(first_name)
        first = _of_rank(self.factors[first_name]) if whole is None else whole
        rows, columns = index_of(box)
        second = _of_rank(self.factors[second_name])[rows]
        return (second @ first[:, columns]) * self.low_rank.scale

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapters inside the context, so that the base model runs."""
        for each in self.modules:
            each.is_on = False
        try:
            yield
        finally:
            for each in self.modules:
                each.is_on = True


def put_adapters(network: Network, model: ModelDescription, low_rank: LowRank) -> None:
    """Put adapters on a network on the meta device, and freeze its own weights.

    Raises:
        ModelError: A matrix to adapt is not in a linear layer, or every tensor-parallel rank has it
            whole.
    """
    adapted = names_of_factors(model, low_rank)
    owners = {
        id(parameter): module
        for module in network.modules()
        for parameter in module._parameters.values()
    }
    for name, parameter in [*network.named_parameters()]:
        parameter.requires_grad_(False)
        if name in adapted:
            linear: Any = owners[id(parameter)]
            if not isinstance(linear, nn.Linear | Linear):
                raise _excluded(name, f"a linear layer, not {type(linear).__name__}")
            if network.parallel.size > 1 and _cut_of(parameter) is None:
                # In a replicated layer, ranks may read all tokens or their own.
                raise _excluded(name, "a layer that tensor-parallel ranks cut")
            linear.adapter = LinearAdapter(linear, low_rank, network.parallel)
            # Before tensor-parallel ranks sum or gather the output.
            linear.register_forward_hook(_add, prepend=True)


def _excluded(name: str, need: str) -> ModelError:
    layer = name.split(".")[-2]
    return ModelError(
        f"{name}: adapters need {need}; leave {layer} out of actor_config.lora.target_modules"
    )


def _add(linear: Any, read: Sequence[Tensor], given: Tensor) -> Tensor:
    added: Tensor = linear.adapter(read[0], given)
    return added


def _cut_of(weight: Tensor) -> int | None:
    """Return the dimension of a weight that tensor-parallel ranks cut; None if they do not."""
    cuts = [each.dim for each in getattr(weight, "placements", ()) if isinstance(each, Shard)]
    return cuts[0] if cuts else None


def _of_rank(factor: Any) -> Tensor:
    own: Tensor = factor.to_local().detach()
    return own


def _gathered(factor: DTensor) -> Tensor:
    """Return all rows of a factor, and this tensor-parallel rank's columns."""
    columns = [
        each if isinstance(each, Shard) and each.dim == 1 else Replicate()
        for each in factor.placements
    ]
    found: Tensor = factor.redistribute(placements=columns).to_local()
    return found.detach()
