"""Which rank holds which part of a model.

A shard is what all ranks with the same coordinates hold, so a thousand ranks do not need a thousand
tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod

from mindrl.models.decoder import ELEMENT_BYTES, DType, Head, always_float32, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import LocalTensor, Placement, Shape, ShardingTable, whole


class LazyTables(Mapping[str, ShardingTable]):
    """Sharding tables by shard, each built at first access: many plans need only a few."""

    def __init__(self) -> None:
        """Start without tables."""
        self._makers: dict[str, Callable[[], ShardingTable]] = {}
        self._made: dict[str, ShardingTable] = {}

    def add(self, name: str, maker: Callable[[], ShardingTable]) -> None:
        """Register a table; a name that is already registered is kept."""
        self._makers.setdefault(name, maker)

    def __getitem__(self, name: str) -> ShardingTable:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Shards of a model and the ranks that hold them."""

    shards: Mapping[str, ShardingTable]
    """Tables by shard. The shards of one rank have no local name in common."""
    held_by: tuple[tuple[str, ...], ...]
    """Shards of each rank of the world; empty for a rank that holds nothing."""
    dtype: DType
    """Dtype of all tensors except those that are always float32."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Maps a shard to one whose local tensors have the same names and shapes."""
    padded_to: Mapping[str, str] = field(default_factory=dict)
    """Maps a shard to the one whose memory its ranks allocate; others allocate their own."""
    frozen: str | None = None
    """Prefix of the names of tensors that are not trained; None if all are."""

    def table(self, rank: int) -> ShardingTable:
        """Return all tensors that a rank holds."""
        return {
            name: entry
            for shard in self.held_by[rank]
            for name, entry in self.shards[shard].items()
        }

    def placements(self) -> Iterator[tuple[str, str, Placement]]:
        """Yield shard, local name and placement of every placement."""
        for shard, table in self.shards.items():
            for name, entry in table.items():
                for placement in entry.placements:
                    yield shard, name, placement

    def element_bytes(self, tensor: str) -> int:
        """Return the bytes per element of a logical tensor."""
        return 4 if always_float32(tensor) else ELEMENT_BYTES[self.dtype]

    def twin_of(self, shard: str) -> str:
        """Return the shard that represents all with the same names and shapes."""
        return self.twins.get(shard, shard)

    def distinct_tables(self) -> dict[str, ShardingTable]:
        """Return one table for all shards with the same names and shapes."""
        names = dict.fromkeys(self.twin_of(shard) for shard in self.shards)
        return {name: self.shards[name] for name in names}

    def stored_as(self, shard: str) -> str:
        """Return the shard whose names and shapes define the buffers of ranks with this shard."""
        return self.padded_to.get(shard, self.twin_of(shard))

    def held_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each rank's weights, if each tensor has its own storage."""
        return self._sums(self.stored_as, partial(table_bytes, dtype=self.dtype))

    def learning_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each rank's trained weights, without padding."""

        def learning(table: ShardingTable) -> int:
            return table_bytes(_without(table, self.frozen), dtype=self.dtype)

        return self._sums(self.twin_of, learning)

    def without(self, prefix: str) -> "Sharding":
        """Return the same sharding without the local tensors of a prefix."""
        tables = LazyTables()
        for name in self.shards:
            tables.add(name, partial(self._table_without, name, prefix))
        return replace(self, shards=tables, frozen=None)

    def _table_without(self, shard: str, prefix: str) -> ShardingTable:
        return _without(self.shards[shard], prefix)

    def storages(self) -> tuple[int, ...]:
        """Return the number of storages of each rank's weights."""
        return self._sums(self.stored_as, len)

    def _sums(
        self, like: Callable[[str], str], measure: Callable[[ShardingTable], int]
    ) -> tuple[int, ...]:
        """Return the sum per rank of `measure` over its shards, each replaced by `like`."""
        held = [[like(shard) for shard in shards] for shards in self.held_by]
        found = {name: measure(self.shards[name]) for name in set(chain(*held))}
        return tuple(sum(found[name] for name in names) for names in held)


def _without(table: ShardingTable, prefix: str | None) -> ShardingTable:
    if prefix is None:
        return table
    return {name: entry for name, entry in table.items() if not name.startswith(prefix)}


def full_sharding(
    model: ModelDescription,
    *,
    world_size: int,
    holders: Sequence[int],
    dtype: DType,
    head: Head = "vocabulary",
) -> Sharding:
    """Return a sharding in which `holders` hold every logical tensor whole, under its own name."""
    shapes = logical_shapes(model, head=head)
    return held_in_full(shapes, world_size=world_size, holders=holders, dtype=dtype)


def held_in_full(
    shapes: Mapping[str, Shape], *, world_size: int, holders: Sequence[int], dtype: DType
) -> Sharding:
    """Return a sharding in which `holders` hold tensors of these shapes whole."""
    table = {name: whole(name, shape) for name, shape in shapes.items()}
    held_by = tuple(("whole",) if rank in holders else () for rank in range(world_size))
    return Sharding(shards={"whole": table}, held_by=held_by, dtype=dtype)


def elsewhere(sharding: Sharding, *, first_rank: int, world_size: int) -> Sharding:
    """Return the same sharding on the ranks from `first_rank`, in a larger world."""
    after = world_size - first_rank - len(sharding.held_by)
    held_by = ((),) * first_rank + sharding.held_by + ((),) * after
    return replace(sharding, held_by=held_by)


def dtype_of(entry: LocalTensor, dtype: DType) -> DType:
    """Return the dtype of a local tensor in a model with dtype `dtype`."""
    kept = any(always_float32(placement.tensor) for placement in entry.placements)
    return "float32" if kept or entry.float32 else dtype


def table_bytes(table: ShardingTable, dtype: DType) -> int:
    """Return the bytes of the local tensors of a table, with the scales of those in int8."""
    return sum(
        prod(entry.shape) + entry.shape[0] * ELEMENT_BYTES["float32"]
        if entry.int8
        else prod(entry.shape) * ELEMENT_BYTES[dtype_of(entry, dtype)]
        for entry in table.values()
    )
