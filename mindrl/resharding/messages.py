"""The messages of one round: which transfers go together, and the memory that they travel in.

A large transfer is a message of its own: it leaves from, or arrives in, the weights themselves
where they lie in one run of the device's memory, and no byte of it is copied on that side. Small
transfers to the same rank are packed into one message.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.placement import volume
from mindrl.resharding.plan import Transfer

_LARGE_BYTES = 256 << 10


@dataclass(kw_only=True)
class Message:
    """What goes between two ranks in one piece, in one type."""

    peer: int
    transfers: list[Transfer]
    memory: Tensor
    """One-dimensional: a part of the staging memory, or the weights themselves."""
    staged: bool
    """The transfers are packed into `memory`, or to be unpacked from it."""
    incoming: bool = False
    round: int = -1
    works: list[dist.Work] = field(default_factory=list)

    def staged_chunks(self) -> Iterator[tuple[Transfer, Tensor]]:
        """Yield each staged transfer with its part of the memory, in the shape of its box."""
        offset = 0
        for transfer in self.transfers if self.staged else ():
            size = volume(transfer.slice.box)
            shape = [stop - start for start, stop in transfer.slice.box]
            yield transfer, self.memory[offset : offset + size].view(shape)
            offset += size


class Staging:
    """Memory for the packed messages of one round, where the group's backend can reach it."""

    def __init__(self, device: torch.device) -> None:
        """Hold nothing yet; the memory is used again for later rounds."""
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def reserve(self, size: int) -> None:
        """Make room; what was in it is gone."""
        if self.memory.numel() < size:
            self.memory = self.memory.new_empty(size)


def messages_of(
    transfers_of: Mapping[int, list[Transfer]],
    wire_dtype: Callable[[str], torch.dtype],
    view: Callable[[Transfer], Tensor],
    staging: Staging,
) -> list[Message]:
    """Lay out the messages of one round, one way; both ends come to the same messages.

    Args:
        transfers_of: Transfers by the other rank.
        wire_dtype: The type that a logical tensor travels in.
        view: This rank's end of a transfer.
        staging: Memory for what is not sent from, or received in, its own place.
    """
    groups, device = _grouped(transfers_of, wire_dtype), staging.memory.device
    direct = [_in_one_run(transfers, dtype, view, device) for _, dtype, transfers in groups]
    sizes = [
        0 if memory is not None else dtype.itemsize * sum(volume(m.slice.box) for m in transfers)
        for (_, dtype, transfers), memory in zip(groups, direct, strict=True)
    ]
    staging.reserve(sum(sizes))
    messages, offset = [], 0
    for (peer, dtype, transfers), memory, size in zip(groups, direct, sizes, strict=True):
        staged = memory is None
        # Wide types come first, so that every part is aligned.
        part = staging.memory[offset : offset + size].view(dtype) if memory is None else memory
        messages.append(Message(peer=peer, transfers=transfers, memory=part, staged=staged))
        offset += size
    return messages


def _grouped(
    transfers_of: Mapping[int, list[Transfer]], wire_dtype: Callable[[str], torch.dtype]
) -> list[tuple[int, torch.dtype, list[Transfer]]]:
    """Group transfers by type and rank, wide types first; large ones stand alone, in order."""
    large: list[tuple[int, torch.dtype, list[Transfer]]] = []
    small: dict[tuple[int, torch.dtype], list[Transfer]] = {}
    for peer, transfers in transfers_of.items():
        for transfer in transfers:
            dtype = wire_dtype(transfer.slice.tensor)
            if transfer.slice.wire_bytes >= _LARGE_BYTES:
                large.append((peer, dtype, [transfer]))
            else:
                small.setdefault((peer, dtype), []).append(transfer)
    packed = [(peer, dtype, transfers) for (peer, dtype), transfers in small.items()]
    return sorted(large + packed, key=lambda group: (-group[1].itemsize, group[0]))


def _in_one_run(
    transfers: list[Transfer],
    dtype: torch.dtype,
    view: Callable[[Transfer], Tensor],
    device: torch.device,
) -> Tensor | None:
    """Return the weights of a single large transfer, if they can travel from or to where they lie.

    An export fills host memory, which the collective library of a device cannot reach.
    """
    if len(transfers) > 1 or transfers[0].slice.wire_bytes < _LARGE_BYTES:
        return None
    values = view(transfers[0])
    fits = values.is_contiguous() and (values.dtype, values.device) == (dtype, device)
    return values.view(-1) if fits else None
