"""Checksums of every slice on both sides, compared by the rank that was written on."""

import torch
from torch import Tensor

from mindrl.errors import ReshardError
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import Transfer


class Checksums:
    """What one rank read and wrote in one reshard."""

    def __init__(self) -> None:
        self.read: dict[int, list[tuple[Transfer, Tensor]]] = {}
        self.written: dict[int, list[tuple[Transfer, Tensor]]] = {}

    def add_source(self, transfer: Transfer, value: Tensor) -> None:
        """Note the checksum of a slice as the source side has it."""
        self.read.setdefault(transfer.peer, []).append((transfer, value))

    def add_target(self, transfer: Transfer, value: Tensor) -> None:
        """Note the checksum of a slice as the target side has it."""
        self.written.setdefault(transfer.peer, []).append((transfer, value))

    def compare(self, channel: Channel) -> None:
        """Send what was read to those who wrote it, and compare. A collective over the channel.

        Raises:
            ReshardError: Names the tensor, the ranks and the slice of the first differences.
        """
        rank = channel.group.rank()
        ours = {peer: _sums(pairs) for peer, pairs in self.read.items()}
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
            f"{transfer.slice.tensor}[{_show(transfer)}] on rank {rank} differs from what rank "
            f"{peer} has"
            for peer, pairs in sorted(self.written.items())
            for (transfer, value), expected in zip(
                _sorted(pairs), theirs[peer].tolist(), strict=True
            )
            if int(value) != expected
        ]
        if found:
            more = f", and {len(found) - 5} more slices" if len(found) > 5 else ""
            raise ReshardError(
                "the rollout weights are not the training weights: " + "; ".join(found[:5]) + more
            )


def _sorted(pairs: list[tuple[Transfer, Tensor]]) -> list[tuple[Transfer, Tensor]]:
    """Order by slice: the two ranks finished them in different orders."""
    return sorted(pairs, key=lambda pair: (*pair[0].slice[:2], pair[0].slice.target[:2]))


def _sums(pairs: list[tuple[Transfer, Tensor]]) -> Tensor:
    return torch.stack([value for _, value in _sorted(pairs)])


def _show(transfer: Transfer) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in transfer.slice.box)
