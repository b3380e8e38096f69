"""Boxes of a range of a tensor's elements, in memory order. Pure Python."""

from collections.abc import Iterator
from math import prod

from mindrl.models.placement import Box, Shape


def boxes_of_run(shape: Shape, start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Cut a range of elements into the fewest boxes with contiguous elements.

    Args:
        shape: Shape of a row-major tensor.
        start: First element.
        stop: End of the range, exclusive.

    Yields:
        A box, and the offset of its elements in the range.
    """
    yield from _cut(shape, start, stop, (), 0)


def _cut(
    shape: Shape, start: int, stop: int, before: Box, offset: int
) -> Iterator[tuple[Box, int]]:
    """Cut a range inside the block that `before` selects in the leading dimensions."""
    if len(shape) <= 1:
        bounds = ((start, stop),) if shape else ()
        if start < stop:
            yield (*before, *bounds), offset
        return
    inner = shape[1:]
    size = prod(inner)

    def part(row: int, first: int, last: int) -> Iterator[tuple[Box, int]]:
        at = offset + row * size + first - start
        return _cut(inner, first, last, (*before, (row, row + 1)), at)

    # First row included from its start, and first row not included to its end.
    first, last = -(-start // size), stop // size
    if first > last:
        yield from part(last, start - last * size, stop - last * size)
        return
    if start < first * size:
        yield from part(first - 1, start - (first - 1) * size, size)
    if first < last:
        yield (
            (*before, (first, last), *((0, length) for length in inner)),
            offset + (first * size - start),
        )
    if last * size < stop:
        yield from part(last, 0, stop - last * size)
