"""Which part of which logical tensor a local tensor holds.

A logical tensor is one as the Hugging Face folder names it, whole. A local tensor is what
one rank of one side really has: fused, interleaved, cut, padded. A sharding table maps each
local tensor to the placements that fill it; import, export and resharding all read the same
tables, so no second mapping exists. Pure Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]
"""Start and stop along each dimension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A box of a logical tensor, and the equally large box of a local tensor that holds it."""

    tensor: str
    """Name of the logical tensor."""
    source: Box
    """In the logical tensor."""
    local: Box
    """In the local tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTensor:
    """A local tensor and what fills it; elements outside all placements are padding."""

    shape: tuple[int, ...]
    placements: tuple[Placement, ...]


ShardingTable = Mapping[str, LocalTensor]
"""Local tensors by their local names."""


def volume(box: Box) -> int:
    """Count the elements of a box."""
    count = 1
    for start, stop in box:
        count *= stop - start
    return count


def slices(box: Box) -> tuple[slice, ...]:
    """Return a box as an index."""
    return tuple(slice(start, stop) for start, stop in box)
