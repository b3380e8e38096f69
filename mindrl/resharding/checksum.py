"""A 64-bit checksum of a slice of weights, the same wherever the slice lies."""

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32}
_CHUNK_ELEMENTS = 1 << 20
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
"""The golden ratio in 64 bits, as a signed number."""
_OFFSET = 0x2545F4914F6CDD1D


def checksum(values: Tensor) -> Tensor:
    """Add up the bits of each element times an odd weight of its place, modulo 2**64.

    The weights are odd, so one changed element always changes the sum; two exchanged elements
    have different weights.

    Returns:
        A scalar, int64, on the device of `values`.
    """
    bits = values.contiguous().view(-1).view(_BITS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, bits.numel(), _CHUNK_ELEMENTS):
        chunk = bits[start : start + _CHUNK_ELEMENTS].long()
        place = torch.arange(start, start + chunk.numel(), device=values.device)
        weights = (place * _MULTIPLIER + _OFFSET) | 1
        # Whatever the place weighs, zeros must not be free: a missing row would not show.
        total += ((chunk + (1 << 33)) * weights).sum()
    return total
