"""The messages of one round: which transfers go together, and the memory that they travel in.

A large transfer is a message of its own: it leaves from, or arrives in, the weights themselves
where they lie in one run of the device's memory, and no byte of it is copied on that side. Small
transfers to the same rank are packed into one message.
"""

from collections import defaultdict
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

    def take(self, size: int) -> Tensor:
        """Return so many bytes; what was in them is gone."""
        if self.memory.numel() < size:
            self.memory = self.memory.new_empty(size)
        return self.memory[:size]


def messages_of(
    transfers_of: Mapping[int, list[Transfer]],
    wire_dtype: Callable[[str], torch.dtype],
    view: Callable[[Transfer], Tensor],
    staging: Staging,
) -> list[Message]:
    """Lay out the messages of one round, one way; both ends come to the same messages.

    Transfers come by the other rank, `view` is this rank's end of one, and `staging` takes what is
    not sent from, or received in, its own place.
    """
    groups: defaultdict[tuple[int, int, int, torch.dtype], list[Transfer]] = defaultdict(list)
    for peer, transfers in transfers_of.items():
        for at, transfer in enumerate(transfers):
            dtype = wire_dtype(transfer.slice.tensor)
            # Large ones stand alone; wide types come first, so that every part is aligned.
            place = at if _is_large(transfer) else len(transfers)
            groups[-dtype.itemsize, peer, place, dtype].append(transfer)
    ordered = [(peer, dtype, group) for (_, peer, _, dtype), group in sorted(groups.items())]
    direct = [_in_one_run(group, view, dtype, staging) for _, dtype, group in ordered]
    sizes = [
        sum(transfer.slice.wire_bytes for transfer in group) if memory is None else 0
        for (_, _, group), memory in zip(ordered, direct, strict=True)
    ]
    parts = staging.take(sum(sizes)).split_with_sizes(sizes)
    return [
        Message(
            peer=peer,
            transfers=group,
            memory=part.view(dtype) if memory is None else memory,
            staged=memory is None,
        )
        for (peer, dtype, group), memory, part in zip(ordered, direct, parts, strict=True)
    ]


def _is_large(transfer: Transfer) -> bool:
    return transfer.slice.wire_bytes >= _LARGE_BYTES


def _in_one_run(
    group: list[Transfer], view: Callable[[Transfer], Tensor], dtype: torch.dtype, staging: Staging
) -> Tensor | None:
    """Return the weights of a large transfer, if they can travel from or to where they lie.

    An export fills host memory, which the collective library of a device cannot reach.
    """
    if not _is_large(group[0]):
        return None
    values, wanted = view(group[0]), (dtype, staging.memory.device)
    fits = values.is_contiguous() and (values.dtype, values.device) == wanted
    return values.view(-1) if fits else None
