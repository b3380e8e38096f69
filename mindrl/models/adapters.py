"""Adapters of low rank on the matrices of a model: their names and shapes, and who holds them.

A matrix W [out, in] is used as W + scale * B A, with A [r, in] and B [out, r]. Each logical matrix
has factors of its own, by PEFT's names; they are cut as the matrix is. Pure Python.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from mindrl.config.lora import LINEARS, LoRAConfig
from mindrl.models.decoder import DType, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, Placement, Shape, ShardingTable
from mindrl.models.sharding import LazyTables, Sharding, held_whole

_PREFIX = "base_model.model."
"""Of all names of PEFT."""
_MODULE = "adapter"
"""Local name of what is on a matrix."""


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Which matrices have adapters, and of what kind."""

    r: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.alpha / self.r

    @classmethod
    def of(cls, config: LoRAConfig) -> "LowRank | None":
        """Read the keys; None where there are no adapters."""
        if not config.r:
            return None
        return cls(
            r=config.r,
            alpha=config.alpha,
            targets=config.target_modules or LINEARS,
            dropout=config.dropout,
        )

    def is_on(self, tensor: str) -> bool:
        """Say whether a logical tensor has factors."""
        *_, module, kind = ("", *tensor.split("."))
        return kind == "weight" and module in self.targets


def factor_names(tensor: str) -> tuple[str, str]:
    """Return the logical names of the factors A and B of a matrix."""
    stem = f"{_PREFIX}{tensor.removesuffix('weight')}"
    return f"{stem}lora_A.weight", f"{stem}lora_B.weight"


def local_factor_names(name: str) -> tuple[str, str]:
    """Return the local names of the factors on a local matrix."""
    stem = f"{name.removesuffix('weight')}{_MODULE}."
    return f"{stem}lora_A", f"{stem}lora_B"


def factor_shapes(model: ModelDescription, low_rank: LowRank) -> dict[str, Shape]:
    """Return the shape of each logical factor, in the order of the layers."""
    found: dict[str, Shape] = {}
    for tensor, shape in logical_shapes(model).items():
        if low_rank.is_on(tensor):
            rows, width = shape
            shapes = (low_rank.r, width), (rows, low_rank.r)
            found |= zip(factor_names(tensor), shapes, strict=True)
    return found


def adapter_sharding(base: Sharding, low_rank: LowRank) -> Sharding:
    """Return who holds what of the factors: whoever holds a part of the matrix."""
    tables = LazyTables()
    for shard in base.shards:
        tables.add(shard, partial(_factors_of_shard, base, shard, low_rank))
    return replace(base, shards=tables)


def whole_adapters(
    model: ModelDescription, low_rank: LowRank, *, world_size: int, dtype: DType
) -> Sharding:
    """Give rank 0 every factor whole."""
    shapes = factor_shapes(model, low_rank)
    return held_whole(shapes, world_size=world_size, holders=[0], dtype=dtype)


def adapted(entry: LocalTensor, low_rank: LowRank) -> tuple[str, ...]:
    """Return the logical matrices of a local one that have factors, in the order of its rows."""
    tensors = dict.fromkeys(placement.tensor for placement in entry.placements)
    return tuple(tensor for tensor in tensors if low_rank.is_on(tensor))


def adapted_rows(entry: LocalTensor, low_rank: LowRank) -> Iterator[Placement]:
    """Yield what fills the rows of a local matrix that have factors; local B has only these."""
    return (each for each in entry.placements if low_rank.is_on(each.tensor))


def _factors_of_shard(base: Sharding, shard: str, low_rank: LowRank) -> ShardingTable:
    found: dict[str, LocalTensor] = {}
    for name, entry in base.shards[shard].items():
        if adapted(entry, low_rank):
            factors = _first(entry, low_rank), _second(entry, low_rank)
            found |= zip(local_factor_names(name), factors, strict=True)
    return found


def _first(entry: LocalTensor, low_rank: LowRank) -> LocalTensor:
    """Hold A of each matrix, one below the other: all of its rows, the columns of the matrix."""
    placements, r = [], low_rank.r
    columns = {each.tensor: (each.source[1], each.local[1]) for each in entry.placements}
    for index, tensor in enumerate(adapted(entry, low_rank)):
        source, local = columns[tensor]
        rows = (index * r, (index + 1) * r)
        placements.append(
            Placement(factor_names(tensor)[0], source=((0, r), source), local=(rows, local))
        )
    return LocalTensor(shape=(len(placements) * r, entry.shape[1]), placements=tuple(placements))


def _second(entry: LocalTensor, low_rank: LowRank) -> LocalTensor:
    """Hold the rows of B that belong to the rows of the local matrix, in their order."""
    placements, r, row = [], (0, low_rank.r), 0
    for each in adapted_rows(entry, low_rank):
        start, stop = each.local[0]
        rows = (row, row + stop - start)
        placements.append(
            Placement(factor_names(each.tensor)[1], source=(each.source[0], r), local=(rows, r))
        )
        row = rows[1]
    return LocalTensor(shape=(row, low_rank.r), placements=tuple(placements))
