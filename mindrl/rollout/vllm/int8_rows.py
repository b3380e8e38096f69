"""Round the rows of a matrix to int8, with a scale for each row.

A row is an output channel. Symmetric: a weight is its int8 number times the scale of its row, and
the largest weight of a row is 127 or -127. The engine rounds inputs itself, with a scale per token.
A rank rounds what it holds. If ranks cut the rows of a matrix, their numbers are those of the whole
matrix. If ranks cut its columns, each has a scale for its part of a row, at most that of the whole
row; the engine multiplies by it before it adds the ranks' products.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = "weight_scale"
OFFSET = "weight_offset"
"""A parameter of vllm-ascend that is added to each int8 number; 0 if symmetric."""
ROW_PARAMETERS = frozenset((SCALE, OFFSET))
LARGEST = 127
_AT_ONCE = 1 << 22
"""Elements that are rounded together, in float32."""


def round_rows(weight_NK: Tensor, into_NK: Tensor, rows: Mapping[str, Tensor]) -> None:
    """Write a matrix into a matrix of int8 and the parameters of its rows, [N, 1] each."""
    scale_N1 = rows[SCALE]
    if OFFSET in rows:
        rows[OFFSET].zero_()
    step = max(1, _AT_ONCE // weight_NK.shape[1])
    for start in range(0, len(weight_NK), step):
        part = slice(start, start + step)
        values = weight_NK[part].float()
        largest = values.abs().amax(1, keepdim=True)
        # In the dtype of the engine's scale: the numbers must fit the scale that it multiplies by.
        scale_N1[part] = torch.where(largest > 0, largest / LARGEST, 1.0)
        numbers = (values / scale_N1[part].float()).round_()
        into_NK[part] = numbers.clamp_(-LARGEST, LARGEST).to(torch.int8)
