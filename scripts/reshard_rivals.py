"""The reshard of other systems, for bench_reshard.py: whole logical tensors, then sharding."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.orientation import oriented
from mindrl.models.placement import Placement, ShardingTable, index_of, volume
from mindrl.models.sharding import Sharding

Tensors = dict[str, Tensor]
DTYPE = torch.bfloat16


class Gather:
    """Methods (a) and (b): whole logical tensors on every rank, by groups."""

    def __init__(
        self, model: ModelDescription, shardings: tuple[Sharding, Sharding], groups: list[list[str]]
    ) -> None:
        """Find the first holder of each box; every rank computes the same.

        Args:
            model: Sizes of the model.
            sides: Source and target.
            groups: Logical tensors that are gathered together.
        """
        source, target = shardings
        self.groups = groups
        self.shapes = logical_shapes(model)
        self.wanted = _placements(target.table(rank()))
        self.pieces = [_first_held(source, holder) for holder in range(len(source.held_by))]
        self.received = 0

    def run(self, ours: Tensors, target: Tensors) -> None:
        """Gather, shard and free each group."""
        self.received = 0
        for names in self.groups:
            whole = {name: torch.empty(self.shapes[name], dtype=DTYPE) for name in names}
            self._fill(names, whole, ours)
            for name in names:
                for local, placement in self.wanted.get(name, ()):
                    part = whole[name][index_of(placement.source)]
                    oriented(target[local], placement.local, placement.axes).copy_(part)

    def _fill(self, names: list[str], whole: Tensors, ours: Tensors) -> None:
        pieces = [[piece for n in names for piece in held.get(n, ())] for held in self.pieces]
        sizes = [sum(volume(p.source) for _, p in each) for each in pieces]
        packed = torch.empty(sizes[rank()], dtype=DTYPE)
        parts = torch.split(packed, [volume(p.source) for _, p in pieces[rank()]])
        for part, (local, placement) in zip(parts, pieces[rank()], strict=True):
            held = oriented(ours[local], placement.local, placement.axes)
            part.view(held.shape).copy_(held)
        for holder, memory in enumerate(self._exchange(packed, sizes)):
            parts = torch.split(memory, [volume(p.source) for _, p in pieces[holder]])
            for part, (_, placement) in zip(parts, pieces[holder], strict=True):
                hole = whole[placement.tensor][index_of(placement.source)]
                hole.copy_(part.view(hole.shape))

    def _exchange(self, packed: Tensor, sizes: list[int]) -> list[Tensor]:
        """Use an all-gather if all ranks hold equal amounts, else broadcasts from each holder."""
        self.received += DTYPE.itemsize * (sum(sizes) - sizes[rank()])
        if len(set(sizes)) == 1:
            joined = torch.empty(sum(sizes), dtype=DTYPE)
            dist.all_gather_single(joined, packed)
            return list(torch.split(joined, sizes))
        memories = []
        for holder, size in enumerate(sizes):
            memory = packed if holder == rank() else torch.empty(size, dtype=DTYPE)
            if size:
                dist.broadcast(memory, src=holder)
            memories.append(memory)
        return memories


def _placements(table: ShardingTable) -> dict[str, list[tuple[str, Placement]]]:
    found: dict[str, list[tuple[str, Placement]]] = {}
    for local, entry in table.items():
        for placement in entry.placements:
            found.setdefault(placement.tensor, []).append((local, placement))
    return found


def _first_held(source: Sharding, holder: int) -> dict[str, list[tuple[str, Placement]]]:
    earlier = {
        (placement.tensor, placement.source)
        for other in range(holder)
        for entry in source.table(other).values()
        for placement in entry.placements
    }
    return {
        tensor: [pair for pair in pairs if (tensor, pair[1].source) not in earlier]
        for tensor, pairs in _placements(source.table(holder)).items()
    }


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank()


def buckets(model: ModelDescription, source: Sharding, bucket_bytes: int) -> list[list[str]]:
    """Group logical tensors with the same holders, so that one all-gather serves a bucket."""
    holders: dict[str, set[int]] = {}
    for holder in range(len(source.held_by)):
        for name, pieces in _first_held(source, holder).items():
            if pieces:
                holders.setdefault(name, set()).add(holder)
    shapes = logical_shapes(model)
    groups: list[list[str]] = []
    size = bucket_bytes + 1
    order = sorted(shapes, key=lambda name: sorted(holders[name]))
    for previous, name in zip([None, *order], order, strict=False):
        changed = previous is None or holders[previous] != holders[name]
        wide = DTYPE.itemsize * torch.Size(shapes[name]).numel()
        if changed or size + wide > bucket_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += wide
    return _mixed_by_holder(groups, holders)


def _mixed_by_holder(groups: list[list[str]], holders: Mapping[str, set[int]]) -> list[list[str]]:
    """Join buckets of single ranks, one per rank, so that they are gathered at once."""
    single: dict[int, list[list[str]]] = {}
    several = []
    for group in groups:
        found = holders[group[0]]
        if len(found) == 1:
            single.setdefault(next(iter(found)), []).append(group)
        else:
            several.append(group)
    rows = max((len(each) for each in single.values()), default=0)
    joined = [
        [name for each in single.values() if row < len(each) for name in each[row]]
        for row in range(rows)
    ]
    return several + joined
