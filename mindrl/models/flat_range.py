"""Boxes of a run of a tensor's elements, in the order in which they lie in memory. Pure Python."""

from collections.abc import Iterator
from math import prod

from mindrl.models.placement import Box, Shape


def boxes_of_run(shape: Shape, start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Cut a run of elements into the fewest boxes whose elements follow each other.

    Args:
        shape: Of a row-major tensor.
        start: The first element.
        stop: The one behind the last.

    Yields:
        A box, and where its elements begin in the run.
    """
    yield from _cut(shape, start, stop, (), 0)


def _cut(
    shape: Shape, start: int, stop: int, before: Box, offset: int
) -> Iterator[tuple[Box, int]]:
    """Cut a run inside the block that `before` leaves of the leading dimensions."""
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

    # The first row that is held from its beginning, and the row that is not held to its end.
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
