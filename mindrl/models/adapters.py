"""Low-rank adapters on a model's matrices: names, shapes and sharding of their factors.

A matrix W [out, in] is used as W + scale * B A, with A [r, in] and B [out, r]. Each logical matrix
has its own factors, under PEFT's names; they are cut as the matrix is. Pure Python.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from mindrl.config.lora import LINEARS, LoRAConfig
from mindrl.models.decoder import DType, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, Placement, Shape, ShardingTable
from mindrl.models.sharding import LazyTables, Sharding, held_in_full
from mindrl.models.vision import module_name

_PREFIX = "base_model.model."
"""Prefix of all names in PEFT."""
FIRST_FACTOR, SECOND_FACTOR = "adapter.lora_A", "adapter.lora_B"
"""Local names of the factors on a matrix."""


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Which matrices have adapters, and their rank and scale."""

    r: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / self.r

    @classmethod
    def of(cls, config: LoRAConfig) -> "LowRank | None":
        """Convert the configuration; None if adapters are off."""
        if not config.r:
            return None
        return cls(
            r=config.r,
            alpha=config.alpha,
            targets=config.target_modules or LINEARS,
            dropout=config.dropout,
        )

    def is_on(self, tensor: str) -> bool:
        """Return whether a logical tensor has factors."""
        *_, module, kind = ("", *tensor.split("."))
        return kind == "weight" and module in self.targets


def factor_names(tensor: str) -> tuple[str, str]:
    """Return the logical names of the factors A and B of a matrix."""
    stem = f"{_PREFIX}{tensor.removesuffix('weight')}"
    return f"{stem}lora_A.weight", f"{stem}lora_B.weight"


def local_factor_names(name: str) -> tuple[str, str]:
    """Return the local names of the factors on a local matrix."""
    stem = name.removesuffix("weight")
    return stem + FIRST_FACTOR, stem + SECOND_FACTOR


class AdapterShardings(NamedTuple):
    """Which rank holds which part of a model's adapters."""

    trained: Sharding
    """The factors."""
    gathered: Sharding | None = None
    """Whole factors A, if training keeps only parts of them; None if it keeps them whole."""

    def untrained_bytes(self, base: Sharding) -> list[int]:
        """Return the bytes of each rank that are not trained: the base and the whole factors."""
        parts = [base.held_bytes()]
        if self.gathered is not None:
            parts.append(self.gathered.held_bytes())
        return [sum(each) for each in zip(*parts, strict=True)]


def names_of_factors(model: ModelDescription, low_rank: LowRank) -> dict[str, tuple[str, str]]:
    """Return the logical names of the factors of each matrix that has some, by its name.

    Names follow transformers' modules, as PEFT's do. A vision tower has no factors.
    """
    vision, found = model.vision, {}
    for tensor in logical_shapes(model):
        if low_rank.is_on(tensor) and not (vision and tensor.startswith(vision.tower)):
            found[tensor] = factor_names(module_name(vision, tensor) if vision else tensor)
    return found


def factor_shapes(model: ModelDescription, low_rank: LowRank) -> dict[str, Shape]:
    """Return the shape of each logical factor, in the order of the layers."""
    shapes, found = logical_shapes(model), dict[str, Shape]()
    for tensor, names in names_of_factors(model, low_rank).items():
        rows, width = shapes[tensor]
        found |= zip(names, ((low_rank.r, width), (rows, low_rank.r)), strict=True)
    return found


def adapter_sharding(base: Sharding, low_rank: LowRank) -> Sharding:
    """Return the sharding of the factors: a rank that holds part of a matrix holds its factors."""
    tables = LazyTables()
    for shard in base.shards:
        tables.add(shard, partial(_factors_of_shard, base, shard, low_rank))
    return replace(base, shards=tables)


def first_factors_of(base: Sharding, model: ModelDescription, low_rank: LowRank) -> Sharding:
    """Return a sharding of the factors A: a rank that holds rows of a matrix has its whole A."""
    names, tables = names_of_factors(model, low_rank), LazyTables()
    for shard in base.shards:
        tables.add(shard, partial(_first_of_shard, base, shard, names, low_rank.r))
    return replace(base, shards=tables, padded_to={}, frozen=None)


def full_adapters(
    model: ModelDescription, low_rank: LowRank, *, world_size: int, dtype: DType
) -> Sharding:
    """Return a sharding in which rank 0 holds every factor whole."""
    shapes = factor_shapes(model, low_rank)
    return held_in_full(shapes, world_size=world_size, holders=[0], dtype=dtype)


def adapted(entry: LocalTensor, low_rank: LowRank) -> tuple[str, ...]:
    """Return the logical matrices of a local one that have factors, in the order of their rows."""
    tensors = dict.fromkeys(placement.tensor for placement in entry.placements)
    return tuple(tensor for tensor in tensors if low_rank.is_on(tensor))


def adapted_rows(entry: LocalTensor, low_rank: LowRank) -> Iterator[Placement]:
    """Yield the placements of a local matrix that have factors; local B has only these rows."""
    return (each for each in entry.placements if low_rank.is_on(each.tensor))


def _factors_of_shard(base: Sharding, shard: str, low_rank: LowRank) -> ShardingTable:
    found: dict[str, LocalTensor] = {}
    for name, entry in base.shards[shard].items():
        if adapted(entry, low_rank):
            factors = _first(entry, low_rank), _second(entry, low_rank)
            found |= zip(local_factor_names(name), factors, strict=True)
    return found


def _first_of_shard(
    base: Sharding, shard: str, names: Mapping[str, tuple[str, str]], r: int
) -> ShardingTable:
    found = {}
    for name, entry in base.shards[shard].items():
        of_matrix = entry.placements[0]
        if of_matrix.tensor in names:
            source, local = (((0, r), box[1]) for box in (of_matrix.source, of_matrix.local))
            held = Placement(names[of_matrix.tensor][0], source=source, local=local)
            shape = (r, entry.shape[1])
            found[local_factor_names(name)[0]] = LocalTensor(shape=shape, placements=(held,))
    return found


def _first(entry: LocalTensor, low_rank: LowRank) -> LocalTensor:
    """Return the local tensor of A of each matrix, stacked: all rows, the matrix's columns."""
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
    """Return the local tensor of B: the rows of the local matrix that have factors, in order."""
    placements, r, row = [], (0, low_rank.r), 0
    for each in adapted_rows(entry, low_rank):
        start, stop = each.local[0]
        rows = (row, row + stop - start)
        placements.append(
            Placement(factor_names(each.tensor)[1], source=(each.source[0], r), local=(rows, r))
        )
        row = rows[1]
    return LocalTensor(shape=(row, low_rank.r), placements=tuple(placements))
