"""The cells of a reshard: parts of logical tensors that lie in one piece on both sides."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from mindrl.errors import ReshardError
from mindrl.models.placement import Box, Placement, intersect, volume
from mindrl.models.sharding import Sharding


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


class _Holders(NamedTuple):
    """All that hold a part of a logical tensor: shard, local name and placement of each."""

    shards: tuple[str, ...]
    names: tuple[str, ...]
    placements: tuple[Placement, ...]
    boxes: tuple[object, ...]
    """Of the placements: tensors whose boxes are alike are cut alike."""


class _Part(NamedTuple):
    """A cell without its names: boxes, and which of the holders have it."""

    box: Box
    elements: int
    target: Box
    sources: tuple[tuple[int, Box], ...]


def cut_into_cells(source: Sharding, target: Sharding, *, largest_bytes: int) -> list[Cell]:
    """Cut what the target side needs into cells, in the order that they should travel in.

    The order takes turns between the holders of the source side: were the layers sent one
    after the other, only one pipeline stage would send at a time. It does not hang on which
    rank holds which shard.

    Args:
        source: Who holds the weights.
        target: Who needs them.
        largest_bytes: Bound on one cell.

    Raises:
        ReshardError: The source side lacks something that the target side needs.
    """
    held = _holders(source)
    made: dict[tuple[object, ...], list[_Part]] = {}
    cells: list[Cell] = []
    for shard, name, wanted in _placements(target):
        tensor = wanted.tensor
        shards, names, placements, boxes = held.get(tensor, _NOBODY)
        element_bytes = min(source.element_bytes(tensor), target.element_bytes(tensor))
        key = element_bytes, wanted.boxes, boxes
        if key not in made:
            largest = max(1, largest_bytes // element_bytes)
            made[key] = list(_parts(name, wanted, placements, largest))
        cells += [
            Cell(
                tensor=tensor,
                box=box,
                wire_bytes=elements * element_bytes,
                target_shard=shard,
                target=Spot(name, local, wanted.axes),
                source_shards=tuple([shards[at] for at, _ in sources]),
                sources=tuple([Spot(names[at], here, placements[at].axes) for at, here in sources]),
            )
            for box, elements, local, sources in made[key]
        ]
    return _taking_turns(cells)


def bytes_by_shards(cells: Iterable[Cell]) -> dict[tuple[str, tuple[str, ...]], int]:
    """Add up what each target shard needs, by the source shards that hold it."""
    sums: dict[tuple[str, tuple[str, ...]], int] = {}
    for cell in cells:
        key = cell.target_shard, cell.source_shards
        sums[key] = sums.get(key, 0) + cell.wire_bytes
    return sums


def _placements(sharding: Sharding) -> Iterator[tuple[str, str, Placement]]:
    """Yield shard, local name and placement of everything on a side."""
    for shard, table in sharding.shards.items():
        for name, entry in table.items():
            for placement in entry.placements:
                yield shard, name, placement


def _holders(source: Sharding) -> dict[str, _Holders]:
    found: dict[str, list[tuple[str, str, Placement]]] = {}
    for row in _placements(source):
        found.setdefault(row[2].tensor, []).append(row)
    holders = {}
    for tensor, rows in found.items():
        shards, names, placements = zip(*rows, strict=True)
        boxes = tuple([placement.boxes for placement in placements])
        holders[tensor] = _Holders(shards, names, placements, boxes)
    return holders


def _parts(
    name: str, wanted: Placement, holders: Sequence[Placement], largest: int
) -> Iterator[_Part]:
    """Cut one placement along all edges of what the source side holds of it."""
    touching = [at for at, held in enumerate(holders) if intersect(wanted.source, held.source)]
    near = [holders[at].source for at in touching]
    edges = [_edges(bounds, [box[dim] for box in near]) for dim, bounds in enumerate(wanted.source)]
    for piece in product(*(list(pairwise(cuts)) for cuts in edges)):
        having = [at for at in touching if intersect(piece, holders[at].source) == piece]
        if not having:
            raise ReshardError(
                f"no rank of the source side holds {wanted.tensor}{_show(piece)}, which the target "
                f"side needs in {name}"
            )
        for box in _split(piece, largest):
            sources = tuple([(at, holders[at].local_part(box)) for at in having])
            yield _Part(box, volume(box), wanted.local_part(box), sources)


def _edges(bounds: tuple[int, int], held: Sequence[tuple[int, int]]) -> list[int]:
    start, stop = bounds
    inner = {edge for each in held for edge in each if start < edge < stop}
    return [start, *sorted(inner), stop]


def _split(box: Box, largest: int) -> Iterator[Box]:
    """Cut a box into parts of at most `largest` elements, along its first wide dimension."""
    elements = volume(box)
    if elements <= largest:
        yield box
        return
    dim = next(dim for dim, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    # As many rows as fit; where not even one does, rows one by one, each cut further.
    step = max(1, largest * (stop - start) // elements)
    for first in range(start, stop, step):
        bounds = (first, min(first + step, stop))
        yield from _split((*box[:dim], bounds, *box[dim + 1 :]), largest)


def _taking_turns(cells: list[Cell]) -> list[Cell]:
    """Order cells by their place among those of the same holders."""
    places: dict[tuple[str, Box], int] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    turns = []
    for cell in cells:
        key = (cell.tensor, cell.box)
        if key not in places:
            places[key] = seen[cell.source_shards]
            seen[cell.source_shards] += 1
        turns.append(places[key])
    # Sorting is stable: within a turn the order of the target tables is kept.
    return [cells[at] for at in sorted(range(len(cells)), key=turns.__getitem__)]


def _show(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"


_NOBODY = _Holders((), (), (), ())
