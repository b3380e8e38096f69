"""Low-rank adapters on Megatron's linear layers (LoRA, arXiv 2106.09685).

A layer's weights are frozen; scale * B A x is added to its output. The factors are cut as the
matrix is, and ranks exchange only r numbers per token.

Shapes: S tokens of this rank, r rank, M adapted matrices that a layer fuses.
"""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn
from torch.nn import functional

from mindrl.models.adapters import LowRank, adapted, adapted_rows, local_factor_names
from mindrl.models.placement import Bounds, Box, LocalTensor, ShardingTable
from mindrl.models.sharding import Sharding
from mindrl.training.megatron.model import unwrap


@dataclass
class AdapterUse:
    """Switches shared by all adapters of a model."""

    is_on: bool = True
    drops: int | None = None
    """Seed of the input dropout; None disables it."""


class Adapter(nn.Module):
    """Adapter of one linear layer: the factors of each matrix that it fuses."""

    def __init__(
        self,
        linear: nn.Module,
        shapes: tuple[Sequence[int], Sequence[int]],
        places: "FactorPlaces",
        use: AdapterUse,
        dropout: "Dropout",
    ) -> None:
        """Allocate factors A and B of these shapes on the layer's device."""
        super().__init__()
        layer: Any = linear
        weight: Tensor = layer.weight
        assert not getattr(layer, "gather_output", False), "its output must be cut like its rows"
        first, second = (weight.new_empty(tuple(shape)) for shape in shapes)
        self.lora_A, self.lora_B = nn.Parameter(first), nn.Parameter(second)
        self.places, self.use, self.dropout = places, use, dropout
        self.cuts_rows = isinstance(linear, ColumnParallelLinear)
        self.is_expert = bool(layer.is_expert)
        self.sequence_parallel = bool(layer.sequence_parallel) and not self.is_expert
        group = None if self.is_expert else parallel_state.get_tensor_model_parallel_group()
        self.group = group if group is not None and group.size() > 1 else None
        # Each tensor-parallel rank sees its part of the sequence: Megatron sums these gradients.
        whole = self.lora_A if self.cuts_rows else self.lora_B
        whole.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, read: Tensor, given: Tensor) -> Tensor:
        """Return the layer's output `given` plus the adapter's output for its input `read`."""
        if not self.use.is_on:
            return given
        low = self._exchanged(functional.linear(self._dropped(read), self.lora_A))
        parts = [
            functional.linear(part, self.lora_B[rows])
            for part, rows in zip(
                torch.split(low, self.places.r, dim=-1), self.places.rows, strict=True
            )
        ]
        added = torch.cat(parts, dim=-1) * self.places.scale
        if self.places.columns is None:
            return given + added
        return given.index_add(-1, self.places.columns, added)

    def difference(self, box: Box) -> Tensor | None:
        """Return the change of a box of the local matrix, float32; None if not adapted."""
        found = self.places.factors(box)
        if found is None:
            return None
        of_first, of_second = found
        rows, columns = (slice(*bounds) for bounds in (of_second, box[1]))
        second, first = self.lora_B.detach()[rows], self.lora_A.detach()[slice(*of_first), columns]
        return (second.float() @ first.float()) * self.places.scale

    def _exchanged(self, low: Tensor) -> Tensor:
        """Return the low-rank activations for the layer: tokens gathered or columns summed."""
        if self.group is None:
            return low
        if self.cuts_rows:
            if self.sequence_parallel:
                gathered: Tensor = gather_from_sequence_parallel_region(low)
                return gathered
            copied: Tensor = copy_to_tensor_model_parallel_region(low)
            return copied
        if self.sequence_parallel:
            scattered: Tensor = reduce_scatter_to_sequence_parallel_region(low)
            return scattered
        reduced: Tensor = reduce_from_tensor_model_parallel_region(low)
        return reduced

    def _dropped(self, read: Tensor) -> Tensor:
        """Apply input dropout. Each rank draws the mask of all ranks and uses its part."""
        if self.use.drops is None or not self.dropout.share:
            return read
        shape, dim = list(read.shape), 0 if self.cuts_rows else read.dim() - 1
        ranks, rank = 1, 0
        if self.group is not None and (self.sequence_parallel or not self.cuts_rows):
            ranks, rank = self.group.size(), self.group.rank()
        shape[dim] *= ranks
        kept = self.dropout.kept(shape, self.use.drops, read.device)
        return read * kept.chunk(ranks, dim)[rank] / (1 - self.dropout.share)


@dataclass
class Dropout:
    """Draws one layer's input masks, and the same mask again when a pass is recomputed.

    Uses its own generator, because other code draws from Megatron's and torch's.
    """

    share: float
    name: str
    """Name of the layer."""
    seed: int | None = None
    """Seed of the passes that are counted."""
    passes: int = 0
    again: deque[int] = field(default_factory=deque)
    """Numbers of passes without gradients, which the backward pass recomputes in this order."""

    def kept(self, shape: Sequence[int], seed: int, device: torch.device) -> Tensor:
        """Return the mask of kept inputs for a pass; `seed` is that of the update."""
        if seed != self.seed:
            self.seed, self.passes = seed, 0
            self.again.clear()
        if torch.is_grad_enabled() and self.again:
            number = self.again.popleft()
        else:
            number, self.passes = self.passes, self.passes + 1
            if not torch.is_grad_enabled():
                self.again.append(number)
        drawn = zlib.crc32(f"{seed} {self.name} {number}".encode())
        generator = torch.Generator(device).manual_seed(drawn)
        return torch.rand(*shape, device=device, generator=generator) >= self.share


@dataclass(frozen=True, kw_only=True)
class FactorPlaces:
    """Which rows of a layer's factors belong to which rows of its matrix."""

    r: int
    scale: float
    rows: list[slice | Tensor]
    """Rows of B of each fused matrix."""
    columns: Tensor | None
    """Output column of each result, matrix by matrix; None if they are in order."""
    pieces: list[tuple[Bounds, int, int]]
    """Rows of the local matrix, and the first row of A and of B for them."""

    @classmethod
    def of(cls, entry: LocalTensor, low_rank: LowRank, device: torch.device) -> "FactorPlaces":
        """Derive the places from the table entry of a local matrix."""
        matrices, pieces, at = adapted(entry, low_rank), [], 0
        rows: list[list[int]] = [[] for _ in matrices]
        columns: list[list[int]] = [[] for _ in matrices]
        for each in adapted_rows(entry, low_rank):
            index, (start, stop) = matrices.index(each.tensor), each.local[0]
            pieces.append(((start, stop), index * low_rank.r, at))
            rows[index] += range(at, at + stop - start)
            columns[index] += range(start, stop)
            at += stop - start
        order = [column for each in columns for column in each]
        in_order = order == list(range(entry.shape[0]))
        return cls(
            r=low_rank.r,
            scale=low_rank.scale,
            rows=[_index(each, device) for each in rows],
            columns=None if in_order else torch.tensor(order, device=device),
            pieces=pieces,
        )

    def factors(self, box: Box) -> tuple[Bounds, Bounds] | None:
        """Return the rows of A and of B for a box of one matrix; None if it is not adapted."""
        first, last = box[0]
        for (start, stop), of_first, of_second in self.pieces:
            if start <= first and last <= stop:
                offset = of_second - start
                return (of_first, of_first + self.r), (first + offset, last + offset)
            assert last <= start or stop <= first, "a box must lie in one matrix"
        return None


def _index(rows: list[int], device: torch.device) -> slice | Tensor:
    """Return a slice if the rows are consecutive, else an index tensor."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


@dataclass
class ModelAdapters:
    """All adapters of this rank's part of a model."""

    on: Mapping[str, Adapter]
    """Adapters by the local name of their matrix."""
    sharding: Sharding
    """Sharding of the factors."""
    table: ShardingTable
    """This rank's table of the factors."""
    low_rank: LowRank
    use: AdapterUse = field(default_factory=AdapterUse)

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors by their local names."""
        return {
            name: factor.data
            for matrix, each in self.on.items()
            for name, factor in zip(
                local_factor_names(matrix), (each.lora_A, each.lora_B), strict=True
            )
        }

    def difference(self, name: str, box: Box) -> Tensor | None:
        """Return the adapters' change to a box of a local tensor, float32; None if not adapted."""
        adapter = self.on.get(name)
        return None if adapter is None else adapter.difference(box)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapters inside the context, so that the base model runs."""
        self.use.is_on = False
        try:
            yield
        finally:
            self.use.is_on = True

    @contextmanager
    def dropping(self, seed: int) -> Iterator[None]:
        """Enable input dropout inside the context; each seed gives other masks."""
        self.use.drops = seed
        try:
            yield
        finally:
            self.use.drops = None


def put_adapters(
    chunks: Sequence[nn.Module], base: ShardingTable, sharding: Sharding, low_rank: LowRank
) -> ModelAdapters:
    """Put uninitialised adapters on a model and freeze its own weights.

    `base` is this rank's table of the model's weights, and `sharding` is that of the factors.
    """
    use, on, table = AdapterUse(), {}, sharding.table(dist.get_rank())
    for name, entry in base.items():
        if not adapted(entry, low_rank):
            continue
        chunk, _, path = name.removesuffix(".weight").partition(".")
        linear = unwrap(chunks[int(chunk.removeprefix("chunk"))]).get_submodule(path)
        assert isinstance(linear, ColumnParallelLinear | RowParallelLinear), (
            f"{name}: not a linear layer"
        )
        first, second = (table[factor].shape for factor in local_factor_names(name))
        places = FactorPlaces.of(entry, low_rank, linear.weight.device)
        dropout = Dropout(low_rank.dropout, adapted(entry, low_rank)[0])
        on[name] = Adapter(linear, (first, second), places, use, dropout)
        for parameter in linear.parameters():
            parameter.requires_grad_(False)
        linear.adapter = on[name]
        linear.register_forward_hook(_add)
    learning = {id(factor) for each in on.values() for factor in each.parameters()}
    for network in map(unwrap, chunks):
        for parameter in network.parameters():
            parameter.requires_grad_(id(parameter) in learning)
        if hasattr(network, "embedding"):
            embedding: Any = network.embedding
            # Recomputation in the backward pass needs an input that requires a gradient.
            embedding.register_forward_hook(_has_gradient)
    return ModelAdapters(on, sharding, table, low_rank, use)


def _add(linear: Any, read: tuple[Tensor, ...], given: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    output, bias = given
    return linear.adapter(read[0], output), bias


def _has_gradient(embedding: nn.Module, read: object, given: Tensor) -> None:  # noqa: ARG001
    if torch.is_grad_enabled():
        given.requires_grad_()
