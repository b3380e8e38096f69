"""The slices of a reshard: boxes of logical tensors that are one local box on both sides."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindrl.errors import ReshardError
from mindrl.models.placement import Bounds, Box, Placement, intersect, show, volume
from mindrl.models.sharding import Sharding

Integers = NDArray[np.int64]
Indices = NDArray[np.int32]
"""Millions of ranks, rounds, or indices."""

SMALL_PART = 8
"""A slice or bundle is small if it takes at most this fraction of a round."""


class LocalSlice(NamedTuple):
    """A box of a local tensor, and the local dimension of each logical one."""

    name: str
    box: Box
    axes: tuple[int, ...] | None


class Slice(NamedTuple):
    """A box of a logical tensor that a target shard needs, and the source shards that have it."""

    tensor: str
    box: Box
    wire_bytes: int
    target_shard: str
    target: LocalSlice
    source_shards: tuple[str, ...]
    sources: tuple[LocalSlice, ...]
    """Position in each of the source shards."""


class Way(NamedTuple):
    """A target shard, and the source shards that can each supply the same slices to it."""

    target_shard: str
    source_shards: tuple[str, ...]


class _Holders(NamedTuple):
    """All holders of a logical tensor's parts: shard, local name and placement of each."""

    shards: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    placements: tuple[Placement, ...] = ()
    likeness: int = -1
    """Tensors with the same number have placements in the same boxes, and are cut alike."""


class _Part(NamedTuple):
    """A slice without names: boxes, and the holders that have it."""

    box: Box
    wire_bytes: int
    target: Box
    having: tuple[int, ...]
    sources: tuple[Box, ...]
    """Box of each holder that has it."""


class _Piece(NamedTuple):
    """A slice in compact form."""

    name: str
    wanted: Placement
    held: _Holders
    part: _Part
    way: int


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Slices of one way that are sent in one round; arrays of equal length."""

    way: Integers
    """Index of the way of each bundle."""
    nbytes: Integers
    members: Sequence[Sequence[int]]
    """Indices of the slices of each bundle, in sending order."""


@dataclass(frozen=True, kw_only=True)
class Slices:
    """All slices in sending order; each `Slice` is built on access."""

    ways: Sequence[Way]
    """All ways that slices use."""
    pieces: Sequence[_Piece]
    largest_bytes: int
    """Bound on the bytes of a slice, and of a bundle."""

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.pieces)

    def __iter__(self) -> Iterator[Slice]:
        """Build all slices, one after another."""
        return map(self._spelled_out, self.pieces)

    def __getitem__(self, index: int) -> Slice:
        """Build one slice."""
        return self._spelled_out(self.pieces[index])

    @cached_property
    def way(self) -> Integers:
        """Index in `ways` of each slice."""
        return np.array([piece.way for piece in self.pieces], dtype=np.int64)

    @cached_property
    def wire_bytes(self) -> Integers:
        """Bytes of each slice."""
        return np.array([piece.part.wire_bytes for piece in self.pieces], dtype=np.int64)

    @cached_property
    def bundles(self) -> Bundles:
        """Bundles of as many successive slices of a way as fit, in the order of their first ones.

        Small slices have bundles of their own, which fill what the others leave of a round.
        """
        ways: list[int] = []
        sizes: list[int] = []
        members: list[list[int]] = []
        filling: dict[tuple[int, int], int] = {}
        limits = self.largest_bytes // SMALL_PART, self.largest_bytes
        pairs = zip(self.way.tolist(), self.wire_bytes.tolist(), strict=True)
        for index, (way, size) in enumerate(pairs):
            limit = limits[size > limits[0]]
            at = filling.get((way, limit))
            if at is None or sizes[at] + size > limit:
                at = filling[way, limit] = len(ways)
                ways.append(way)
                sizes.append(0)
                members.append([])
            sizes[at] += size
            members[at].append(index)
        columns = [np.array(column, dtype=np.int64) for column in (ways, sizes)]
        return Bundles(way=columns[0], nbytes=columns[1], members=members)

    @cached_property
    def bytes_by_way(self) -> Mapping[Way, int]:
        """Bytes that each target shard needs, by the source shards that hold them."""
        sums = np.bincount(self.way, weights=self.wire_bytes)
        return dict(zip(self.ways, map(int, sums), strict=True))

    @property
    def digest(self) -> bytes:
        """Hash of the data of slices on which both ends of a message must agree, 16 bytes.

        Excludes the position of a slice in a rank's memory.
        """
        boxes: dict[int, str] = {}

        def spelled(piece: _Piece) -> str:
            # Thousands of tensors share their parts.
            text = boxes.get(id(piece.part))
            if text is None:
                text = boxes[id(piece.part)] = repr(piece.part)
            return f"{piece.way} {piece.wanted.tensor} {text}"

        state = blake2b(repr(self.largest_bytes).encode(), digest_size=16)
        for piece in self.pieces:
            state.update(spelled(piece).encode())
        return state.digest()

    def _spelled_out(self, piece: _Piece) -> Slice:
        name, wanted, held, part, way = piece
        return Slice(
            tensor=wanted.tensor,
            box=part.box,
            wire_bytes=part.wire_bytes,
            target_shard=self.ways[way].target_shard,
            target=LocalSlice(name, part.target, wanted.axes),
            source_shards=self.ways[way].source_shards,
            sources=tuple(
                LocalSlice(held.names[holder], box, held.placements[holder].axes)
                for holder, box in zip(part.having, part.sources, strict=True)
            ),
        )


def cut_into_slices(source: Sharding, target: Sharding, *, largest_bytes: int) -> Slices:
    """Cut the target side's tensors into slices of at most `largest_bytes`, in sending order.

    The order alternates between the holders of the source side: if the layers were sent in order,
    only one pipeline stage would send at a time. It does not depend on which rank holds which
    shard.

    Raises:
        ReshardError: The source side lacks a part that the target side needs.
    """
    holders = _holders(source)
    made: dict[tuple[object, ...], list[_Part]] = {}
    ways: dict[Way, int] = {}

    @cache
    def way(shard: str, shards: tuple[str, ...], having: tuple[int, ...]) -> int:
        return ways.setdefault(Way(shard, tuple([shards[at] for at in having])), len(ways))

    pieces: list[_Piece] = []
    for shard, name, wanted in target.placements():
        tensor = wanted.tensor
        held = holders.get(tensor, _Holders())
        element_bytes = min(source.element_bytes(tensor), target.element_bytes(tensor))
        key = element_bytes, wanted.boxes, held.likeness
        if key not in made:
            made[key] = list(_parts(name, wanted, held.placements, element_bytes, largest_bytes))
        pieces += [
            _Piece(name, wanted, held, part, way(shard, held.shards, part.having))
            for part in made[key]
        ]
    turns = _in_turns(pieces, list(ways))
    return Slices(ways=list(ways), pieces=turns, largest_bytes=largest_bytes)


def _holders(source: Sharding) -> dict[str, _Holders]:
    found: dict[str, list[tuple[str, str, Placement]]] = {}
    for row in source.placements():
        found.setdefault(row[2].tensor, []).append(row)
    likeness: dict[tuple[object, ...], int] = {}
    # One object for all tensors of the same shards.
    alone: dict[tuple[str, ...], tuple[str, ...]] = {}
    holders = {}
    for tensor, rows in found.items():
        shards, names, placements = zip(*rows, strict=True)
        shards = alone.setdefault(shards, shards)
        boxes = tuple([placement.boxes for placement in placements])
        alike = likeness.setdefault(boxes, len(likeness))
        holders[tensor] = _Holders(shards, names, placements, alike)
    return holders


def _in_turns(pieces: Sequence[_Piece], ways: Sequence[Way]) -> list[_Piece]:
    """Sort pieces, stably, by their index among those of the same holders."""
    places: dict[tuple[str, Box], int] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    turns = []
    for piece in pieces:
        key = piece.wanted.tensor, piece.part.box
        turn = places.get(key)
        if turn is None:
            holders = ways[piece.way].source_shards
            turn = places[key] = seen[holders]
            seen[holders] = turn + 1
        turns.append(turn)
    order = np.argsort(np.array(turns, dtype=np.int64), kind="stable")
    return [pieces[at] for at in order.tolist()]


def _parts(
    name: str,
    wanted: Placement,
    holders: Sequence[Placement],
    element_bytes: int,
    largest_bytes: int,
) -> Iterator[_Part]:
    """Cut one placement of a local tensor along all edges of the source side's boxes."""
    largest = max(1, largest_bytes // element_bytes)
    touching = [at for at, held in enumerate(holders) if intersect(wanted.source, held.source)]
    near = [holders[at].source for at in touching]
    cuts = [_cuts(bounds, [box[dim] for box in near]) for dim, bounds in enumerate(wanted.source)]
    for piece in product(*cuts):
        having = tuple([at for at in touching if intersect(piece, holders[at].source) == piece])
        if not having:
            raise ReshardError(
                f"no source rank has {show(wanted.tensor, piece)}, which a target rank "
                f"needs in {name}"
            )
        for box in _split(piece, largest):
            sources = tuple([holders[at].local_part(box) for at in having])
            size = volume(box) * element_bytes
            yield _Part(box, size, wanted.local_part(box), having, sources)


def _cuts(bounds: Bounds, held: Sequence[Bounds]) -> Iterator[Bounds]:
    start, stop = bounds
    inner = {edge for each in held for edge in each if start < edge < stop}
    return pairwise([start, *sorted(inner), stop])


def _split(box: Box, largest: int) -> Iterator[Box]:
    """Cut a box into parts of at most `largest` elements, along its first wide dimension."""
    elements = volume(box)
    if elements <= largest:
        yield box
        return
    dim = next(dim for dim, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    # As many rows as fit; if not even one fits, single rows that are cut further.
    step = max(1, largest * (stop - start) // elements)
    for first in range(start, stop, step):
        bounds = (first, min(first + step, stop))
        yield from _split((*box[:dim], bounds, *box[dim + 1 :]), largest)
