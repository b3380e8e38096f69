"""The cells of a reshard: parts of logical tensors that lie in one piece on both sides."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from mindrl.errors import ReshardError
from mindrl.models.decoder import Side
from mindrl.models.placement import Box, Placement, intersect, volume


class Spot(NamedTuple):
    """A box of a local tensor, and the local dimension that each logical one lies along."""

    name: str
    box: Box
    axes: tuple[int, ...] | None


class Cell(NamedTuple):
    """A box of a logical tensor that a target shard needs, and where source shards have it."""

    tensor: str
    box: Box
    wire_bytes: int
    target_shard: str
    target: Spot
    source_shards: tuple[str, ...]
    sources: tuple[Spot, ...]
    """Where each of the source shards holds it."""


_Holders = Mapping[str, Sequence[tuple[str, str, Placement]]]
"""Shard, local name and placement of everything that holds a part of a logical tensor."""


def cut_into_cells(source: Side, target: Side, *, largest_bytes: int) -> list[Cell]:
    """Cut what the target side needs into cells, in the order that they should travel in.

    The order takes turns between the holders of the source side: were the layers sent one
    after the other, only one pipeline stage would send at a time.

    Args:
        source: Who holds the weights.
        target: Who needs them.
        largest_bytes: Bound on one cell.

    Raises:
        ReshardError: The source side lacks something that the target side needs.
    """
    holders = _holders(source)
    cells: list[Cell] = []
    for shard, table in target.shards.items():
        for name, entry in table.items():
            for placement in entry.placements:
                size = min(
                    source.element_bytes(placement.tensor), target.element_bytes(placement.tensor)
                )
                largest = max(1, largest_bytes // size)
                found = _cells(shard, name, placement, holders.get(placement.tensor, ()))
                cells += [part for cell in found for part in _split(cell, largest, size)]
    return _taking_turns(cells)


def _holders(source: Side) -> _Holders:
    holders: dict[str, list[tuple[str, str, Placement]]] = {}
    for shard, table in source.shards.items():
        for name, entry in table.items():
            for placement in entry.placements:
                holders.setdefault(placement.tensor, []).append((shard, name, placement))
    return holders


def _cells(
    shard: str, name: str, wanted: Placement, holders: Sequence[tuple[str, str, Placement]]
) -> Iterator[Cell]:
    """Cut one placement along all edges of what the source side holds of it."""
    touching = [holder for holder in holders if intersect(wanted.source, holder[2].source)]
    edges = [_edges(wanted, touching, dim) for dim in range(len(wanted.source))]
    for box in product(*(list(pairwise(cuts)) for cuts in edges)):
        sources = [
            (held_by, Spot(local, held.local_part(box), held.axes))
            for held_by, local, held in touching
            if intersect(box, held.source) == box
        ]
        if not sources:
            raise ReshardError(
                f"no rank of the source side holds {wanted.tensor}{_show(box)}, which the target "
                f"side needs in {name}"
            )
        yield Cell(
            tensor=wanted.tensor,
            box=box,
            wire_bytes=0,
            target_shard=shard,
            target=Spot(name, wanted.local_part(box), wanted.axes),
            source_shards=tuple(held_by for held_by, _ in sources),
            sources=tuple(spot for _, spot in sources),
        )


def _edges(wanted: Placement, holders: Sequence[tuple[str, str, Placement]], dim: int) -> list[int]:
    start, stop = wanted.source[dim]
    inner = {edge for _, _, held in holders for edge in held.source[dim] if start < edge < stop}
    return [start, *sorted(inner), stop]


def _split(cell: Cell, largest: int, element_bytes: int) -> Iterator[Cell]:
    """Cut a cell into parts of at most `largest` elements, along its first wide dimension."""
    elements = volume(cell.box)
    if elements <= largest:
        yield cell._replace(wire_bytes=elements * element_bytes)
        return
    dim = next(dim for dim, (start, stop) in enumerate(cell.box) if stop - start > 1)
    start, stop = cell.box[dim]
    # As many rows as fit; where not even one does, rows one by one, each cut further.
    step = max(1, largest * (stop - start) // elements)
    for first in range(start, stop, step):
        bounds = (first, min(first + step, stop))
        part = _part(cell, dim, bounds)
        yield from _split(part, largest, element_bytes)


def _part(cell: Cell, dim: int, bounds: tuple[int, int]) -> Cell:
    box = (*cell.box[:dim], bounds, *cell.box[dim + 1 :])

    def narrowed(spot: Spot) -> Spot:
        axis = dim if spot.axes is None else spot.axes[dim]
        offset = spot.box[axis][0] - cell.box[dim][0]
        inside = (bounds[0] + offset, bounds[1] + offset)
        return spot._replace(box=(*spot.box[:axis], inside, *spot.box[axis + 1 :]))

    return cell._replace(
        box=box,
        target=narrowed(cell.target),
        sources=tuple(narrowed(spot) for spot in cell.sources),
    )


def _taking_turns(cells: list[Cell]) -> list[Cell]:
    """Order cells by their place among those of the same holders."""
    places: dict[tuple[str, Box], int] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    for cell in cells:
        key = (cell.tensor, cell.box)
        if key not in places:
            places[key] = seen[cell.source_shards]
            seen[cell.source_shards] += 1
    # Sorting is stable: within a turn the order of the target tables is kept.
    return sorted(cells, key=lambda cell: places[cell.tensor, cell.box])


def _show(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
