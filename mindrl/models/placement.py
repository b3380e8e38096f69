"""Which part of which logical tensor a local tensor holds.

A logical tensor is a whole tensor under its name in the Hugging Face folder. A local tensor is what
one rank of an engine holds: fused, interleaved, cut, padded, transposed. A sharding table maps each
local tensor to the placements that fill it. Import, export and resharding all read the same tables,
so there is no second mapping. Pure Python.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

Shape = tuple[int, ...]
Bounds = tuple[int, int]
"""Start and stop along one dimension."""
Box = tuple[Bounds, ...]
"""Start and stop along each dimension."""
Rows = tuple[str, Bounds]
"""A logical tensor and some of its rows."""


class Placement(NamedTuple):
    """A box of a logical tensor, and the box of the same size in a local tensor that holds it."""

    tensor: str
    """Name of the logical tensor."""
    source: Box
    """Box of the logical tensor."""
    local: Box
    """Box of the local tensor."""
    axes: tuple[int, ...] | None = None
    """Local dimension of each logical one; None keeps their order.

    Local dimensions that are not listed are one element wide.
    """

    @property
    def boxes(self) -> tuple[Box, Box, tuple[int, ...] | None]:
        """The placement without the tensor's name."""
        return self.source, self.local, self.axes

    def local_part(self, part: Box) -> Box:
        """Map a box inside `source` to the local tensor."""
        local = list(self.local)
        for dim, ((start, stop), (origin, _)) in enumerate(zip(part, self.source, strict=True)):
            axis = dim if self.axes is None else self.axes[dim]
            offset = self.local[axis][0] - origin
            local[axis] = (start + offset, stop + offset)
        return tuple(local)

    def source_part(self, part: Box) -> Box:
        """Map a box inside `local` to the logical tensor."""
        found = []
        for dim, (origin, _) in enumerate(self.source):
            axis = dim if self.axes is None else self.axes[dim]
            offset = origin - self.local[axis][0]
            found.append((part[axis][0] + offset, part[axis][1] + offset))
        return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTensor:
    """A local tensor and its placements; elements outside all placements are padding."""

    shape: Shape
    placements: tuple[Placement, ...]
    float32: bool = False
    """Whether this engine keeps it in float32 regardless of the model's dtype."""
    int8: bool = False
    """Whether this engine rounds it to int8, with a scale in float32 for each row. It arrives in
    the model's dtype."""


ShardingTable = Mapping[str, LocalTensor]
"""Local tensors by their local names."""


@lru_cache(maxsize=1 << 14)
def box_of(*bounds: Bounds) -> Box:
    """Return a box; equal boxes are one object, because experts have thousands of each."""
    return bounds


def volume(box: Box) -> int:
    """Return the number of elements of a box."""
    count = 1
    for start, stop in box:
        count *= stop - start
    return count


def index_of(box: Box) -> tuple[slice, ...]:
    """Return a box as an index of slices."""
    return tuple(slice(start, stop) for start, stop in box)


def show(tensor: str, box: Box) -> str:
    """Return a box of a tensor as text, written like an index."""
    return f"{tensor}[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


def relative(part: Box, box: Box) -> Box:
    """Return `part` relative to the start of `box`."""
    return tuple(
        (start - first, stop - first) for (start, stop), (first, _) in zip(part, box, strict=True)
    )


def intersect(one: Box, other: Box) -> Box | None:
    """Return the common part of two boxes of one tensor; None if they are disjoint."""
    common = []
    for (start, stop), (other_start, other_stop) in zip(one, other, strict=True):
        first, last = max(start, other_start), min(stop, other_stop)
        if first >= last:
            return None
        common.append((first, last))
    return tuple(common)


def part_of(count: int, parts: int, index: int) -> Bounds:
    """Return the bounds of part `index` of `parts` equal parts."""
    assert count % parts == 0, f"{count} is not divisible by {parts}"
    size = count // parts
    return index * size, (index + 1) * size


def whole(name: str, shape: Shape) -> LocalTensor:
    """Return a local tensor that holds a logical tensor whole."""
    return stack([(name, (0, shape[0]))], tail=shape[1:])


def columns(name: str, rows: int, bounds: Bounds) -> LocalTensor:
    """Return a local tensor that holds some columns of a matrix."""
    width = bounds[1] - bounds[0]
    source, local = box_of((0, rows), bounds), box_of((0, rows), (0, width))
    placement = Placement(name, source=source, local=local)
    return LocalTensor(shape=(rows, width), placements=(placement,))


def padded_rows(name: str, shape: Shape, rows: int, index: int) -> LocalTensor:
    """Return part `index` of `rows` rows each; padding follows the tensor's last row."""
    bounds = (index * rows, min((index + 1) * rows, shape[0]))
    return stack([(name, bounds)], tail=shape[1:], pad_to=rows)


def stack(parts: Iterable[Rows], *, tail: Shape = (), pad_to: int = 0) -> LocalTensor:
    """Return a local tensor of stacked rows of logical tensors, padded to `pad_to` rows.

    `tail` has the sizes of the dimensions after the rows.
    """
    whole_tail = tuple((0, size) for size in tail)
    placements = []
    row = 0
    for name, (start, stop) in parts:
        if start < stop:
            source = box_of((start, stop), *whole_tail)
            local = box_of((row, row + stop - start), *whole_tail)
            placements.append(Placement(tensor=name, source=source, local=local))
            row += stop - start
    return LocalTensor(shape=(max(row, pad_to), *tail), placements=tuple(placements))
