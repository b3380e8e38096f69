"""Positions of tokens in three dimensions, as Qwen's vision-language models count them (M-RoPE).

Qwen2-VL, arXiv:2409.12191, section 2.1. Text counts all three alike. A picture's tokens share the
first; the others count its rows and its columns. Text continues after the largest of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenGrid(NamedTuple):
    """The tokens of a picture in a sequence, row by row."""

    first: int
    """Position of the first token in the sequence."""
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.rows * self.columns


def grid_positions(length: int, grids: Sequence[TokenGrid]) -> Tensor:
    """Return the positions [3, L] of a sequence with pictures, which are in order."""
    parts, end, next_position = [], 0, 0
    for grid in grids:
        text = grid.first - end
        parts.append(_text(next_position, text))
        next_position += text
        rows, columns = torch.arange(grid.rows), torch.arange(grid.columns)
        down = rows.repeat_interleave(grid.columns)
        across = columns.repeat(grid.rows)
        parts.append(next_position + torch.stack([torch.zeros_like(down), down, across]))
        next_position += max(grid.rows, grid.columns)
        end = grid.first + grid.tokens
    parts.append(_text(next_position, length - end))
    return torch.cat(parts, dim=1)


def _text(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count).expand(3, -1)
