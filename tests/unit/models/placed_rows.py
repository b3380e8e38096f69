"""Rows of gated delta nets in the tables of engines."""

from mindrl.models.placement import LocalTensor


def rows(entry: LocalTensor) -> list[tuple[str, tuple[int, int]]]:
    """Return the rows of each logical tensor, in the order of the local ones."""
    return [(each.tensor.split("linear_attn.")[-1], each.source[0]) for each in entry.placements]
