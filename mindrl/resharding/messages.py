"""The messages of one round: which moves go together, and the memory that they travel in.

A large move is a message of its own: it leaves from, or arrives in, the weights themselves where
they lie in one run of the device's memory, and no byte of it is copied on that side. Small moves
to the same rank are packed into one message.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.placement import volume
from mindrl.resharding.plan import Move

_LARGE_BYTES = 256 << 10


@dataclass(kw_only=True)
class Message:
    """What goes between two ranks in one piece, in one type."""

    peer: int
    moves: list[Move]
    memory: Tensor
    """One-dimensional: a part of the staging memory, or the weights themselves."""
    staged: bool
    """The moves are packed into `memory`, or to be unpacked from it."""
    incoming: bool = False
    round: int = -1
    works: list[dist.Work] = field(default_factory=list)

    def staged_chunks(self) -> Iterator[tuple[Move, Tensor]]:
        """Yield each staged move with its part of the memory, in the shape of its box."""
        offset = 0
        for move in self.moves if self.staged else ():
            size = volume(move.cell.box)
            shape = [stop - start for start, stop in move.cell.box]
            yield move, self.memory[offset : offset + size].view(shape)
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
    moves_of: Mapping[int, list[Move]],
    wire_dtype: Callable[[str], torch.dtype],
    view: Callable[[Move], Tensor],
    staging: Staging,
) -> list[Message]:
    """Lay out the messages of one round, one way; both ends come to the same messages.

    Args:
        moves_of: Moves by the other rank.
        wire_dtype: The type that a logical tensor travels in.
        view: This rank's end of a move.
        staging: Memory for what is not sent from, or received in, its own place.
    """
    groups, device = _grouped(moves_of, wire_dtype), staging.memory.device
    direct = [_in_one_run(moves, dtype, view, device) for _, dtype, moves in groups]
    sizes = [
        0 if memory is not None else dtype.itemsize * sum(volume(m.cell.box) for m in moves)
        for (_, dtype, moves), memory in zip(groups, direct, strict=True)
    ]
    staging.reserve(sum(sizes))
    messages, offset = [], 0
    for (peer, dtype, moves), memory, size in zip(groups, direct, sizes, strict=True):
        staged = memory is None
        # Wide types come first, so that every part is aligned.
        part = staging.memory[offset : offset + size].view(dtype) if memory is None else memory
        messages.append(Message(peer=peer, moves=moves, memory=part, staged=staged))
        offset += size
    return messages


def _grouped(
    moves_of: Mapping[int, list[Move]], wire_dtype: Callable[[str], torch.dtype]
) -> list[tuple[int, torch.dtype, list[Move]]]:
    """Group moves by type and rank, wide types first; large ones stand alone, in their order."""
    large: list[tuple[int, torch.dtype, list[Move]]] = []
    small: dict[tuple[int, torch.dtype], list[Move]] = {}
    for peer, moves in moves_of.items():
        for move in moves:
            dtype = wire_dtype(move.cell.tensor)
            if move.cell.wire_bytes >= _LARGE_BYTES:
                large.append((peer, dtype, [move]))
            else:
                small.setdefault((peer, dtype), []).append(move)
    packed = [(peer, dtype, moves) for (peer, dtype), moves in small.items()]
    return sorted(large + packed, key=lambda group: (-group[1].itemsize, group[0]))


def _in_one_run(
    moves: list[Move], dtype: torch.dtype, view: Callable[[Move], Tensor], device: torch.device
) -> Tensor | None:
    """Return the weights of a single large move, if they can travel from or to where they lie.

    An export fills host memory, which the collective library of a device cannot reach.
    """
    if len(moves) > 1 or moves[0].cell.wire_bytes < _LARGE_BYTES:
        return None
    values = view(moves[0])
    fits = values.is_contiguous() and (values.dtype, values.device) == (dtype, device)
    return values.view(-1) if fits else None
