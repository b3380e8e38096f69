"""Weights from the training layout to whole logical tensors, a bucket at a time.

Every rank of a training replica offers the boxes that it holds; the others copy them into
place. The tables of all ranks are pure functions of the rank, so no rank has to ask what
another one holds. The bound on memory is one bucket of whole tensors plus what travels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.placement import Placement, ShardingTable, slices, volume


@dataclass(frozen=True, kw_only=True)
class ReshardReport:
    """What one reshard moved, seen from this rank."""

    bytes_sent: int
    bytes_received: int
    bytes_local: int


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One placement and the local tensor that it lies in."""

    local_name: str
    placement: Placement


class GatherReshard:
    """Gathers the weights of one training replica into whole tensors on each of its ranks."""

    def __init__(
        self,
        tables: Sequence[ShardingTable],
        shapes: Mapping[str, tuple[int, ...]],
        group: dist.ProcessGroup,
        *,
        bucket_bytes: int = 256 << 20,
    ) -> None:
        """Plan the gather.

        Args:
            tables: The sharding table of each rank of the replica.
            shapes: Logical tensors in the order that they will be delivered in.
            group: The ranks of the replica, in the order of `tables`.
            bucket_bytes: Bound on the whole tensors alive at a time; one tensor may exceed it.
        """
        self.shapes = shapes
        self.group = group
        self.bucket_bytes = bucket_bytes
        self.pieces = [_first_holder_pieces(tables, rank) for rank in range(len(tables))]
        self.report = ReshardReport(bytes_sent=0, bytes_received=0, bytes_local=0)

    @torch.no_grad()
    def tensors(self, local: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield each logical tensor, whole. A collective: every rank must drain it.

        Args:
            local: This rank's tensors by their local names, on the device.
        """
        self.report = ReshardReport(bytes_sent=0, bytes_received=0, bytes_local=0)
        for names in self._buckets(next(iter(local.values())).element_size()):
            yield from self._gather(names, local).items()

    def _buckets(self, element_size: int) -> Iterator[list[str]]:
        bucket: list[str] = []
        size = 0
        for name, shape in self.shapes.items():
            tensor_bytes = torch.Size(shape).numel() * element_size
            if bucket and size + tensor_bytes > self.bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(name)
            size += tensor_bytes
        yield bucket

    def _gather(self, names: list[str], local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = next(iter(local.values()))
        whole = {name: like.new_empty(self.shapes[name]) for name in names}
        ours = self.group.rank()
        for rank, pieces in enumerate(self.pieces):
            wanted = [piece for name in names for piece in pieces.get(name, ())]
            elements = sum(volume(piece.placement.source) for piece in wanted)
            if rank == ours:
                parts = [local[p.local_name][slices(p.placement.local)] for p in wanted]
            if self.group.size() > 1:
                packed = like.new_empty(elements)
                if rank == ours and parts:
                    torch.cat([part.reshape(-1) for part in parts], out=packed)
                dist.broadcast(packed, group=self.group, group_src=rank)
                parts = _unpack(packed, wanted)
            for piece, part in zip(wanted, parts, strict=True):
                target = whole[piece.placement.tensor]
                target[slices(piece.placement.source)].copy_(part)
            self._count(elements * like.element_size(), local=rank == ours)
        return whole

    def _count(self, moved: int, *, local: bool) -> None:
        before = self.report
        others = self.group.size() - 1
        self.report = ReshardReport(
            bytes_sent=before.bytes_sent + (moved * others if local else 0),
            bytes_received=before.bytes_received + (0 if local else moved),
            bytes_local=before.bytes_local + (moved if local else 0),
        )


def _unpack(packed: Tensor, pieces: Sequence[_Piece]) -> list[Tensor]:
    parts = torch.split(packed, [volume(piece.placement.source) for piece in pieces])
    return [
        part.view([stop - start for start, stop in piece.placement.source])
        for part, piece in zip(parts, pieces, strict=True)
    ]


def _first_holder_pieces(tables: Sequence[ShardingTable], rank: int) -> dict[str, list[_Piece]]:
    """List what a rank offers: of boxes that several ranks hold, only the first one offers."""
    held = {
        (placement.tensor, placement.source)
        for table in tables[:rank]
        for entry in table.values()
        for placement in entry.placements
    }
    offered: dict[str, list[_Piece]] = {}
    for name, entry in tables[rank].items():
        for placement in entry.placements:
            if (placement.tensor, placement.source) not in held:
                piece = _Piece(local_name=name, placement=placement)
                offered.setdefault(placement.tensor, []).append(piece)
    return offered
