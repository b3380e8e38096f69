"""Checksums of every slice on both sides, compared by the rank that wrote the slice."""

from collections import defaultdict

import torch
from torch import Tensor

from mindrl.errors import ReshardError
from mindrl.models.placement import show
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import Transfer

Sums = defaultdict[int, list[tuple[Transfer, Tensor]]]
"""Slices and their checksums, by the other rank."""
_BITS = {2: torch.int16, 4: torch.int32}
_CHUNK_ELEMENTS = 1 << 20
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
"""The golden ratio in 64 bits, as a signed number."""
_OFFSET = 0x2545F4914F6CDD1D


def checksum(values: Tensor) -> Tensor:
    """Return the sum of each element's bits times an odd weight of its position, modulo 2**64.

    The weights are odd, so one changed element always changes the sum; two swapped elements have
    different weights.

    Returns:
        A scalar, int64, on the device of `values`.
    """
    bits = values.contiguous().view(-1).view(_BITS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, bits.numel(), _CHUNK_ELEMENTS):
        chunk = bits[start : start + _CHUNK_ELEMENTS].long()
        place = torch.arange(start, start + chunk.numel(), device=values.device)
        weights = (place * _MULTIPLIER + _OFFSET) | 1
        # Offset the bits, so that zeros count too: a missing row of zeros must change the sum.
        total += ((chunk + (1 << 33)) * weights).sum()
    return total


class Checksums:
    """Checksums of the slices that one rank read and wrote in one reshard."""

    def __init__(self) -> None:
        """Start without slices."""
        self.read: Sums = defaultdict(list)
        self.written: Sums = defaultdict(list)

    def compare(self, channel: Channel) -> None:
        """Send the reader's checksums to the writers, and compare. A collective over the channel.

        Raises:
            ReshardError: Names the tensor, the ranks and the slice of the first differences.
        """
        rank = channel.group.rank()
        for pairs in (*self.read.values(), *self.written.values()):
            # Sorted by slice: the two ranks finished them in different orders.
            pairs.sort(key=lambda pair: (*pair[0].slice[:2], pair[0].slice.target[:2]))
        ours = {peer: torch.stack([each for _, each in pairs]) for peer, pairs in self.read.items()}
        local = ours.pop(rank, None)
        theirs = {
            peer: torch.empty(len(pairs), dtype=torch.int64, device=channel.device)
            for peer, pairs in self.written.items()
            if peer != rank
        }
        channel.swap(ours, theirs)
        if local is not None:
            theirs[rank] = local
        found = [
            (
                f"{show(transfer.slice.tensor, transfer.slice.box)} differs between "
                f"{channel.name_of(rank)} and {channel.name_of(peer)}"
            )
            for peer, pairs in sorted(self.written.items())
            for (transfer, value), expected in zip(pairs, theirs[peer].tolist(), strict=True)
            if int(value) != expected
        ]
        if found:
            more = f", and {len(found) - 5} more slices" if len(found) > 5 else ""
            raise ReshardError(
                ("the rollout weights differ from the training weights: ")
                + "; ".join(found[:5])
                + more
            )
