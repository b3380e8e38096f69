"""Read boxes of logical tensors from Hugging Face folders and rank files."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindrl.checkpoint.export import TORCH_TYPES
from mindrl.checkpoint.files import missing_tensor, open_tensors
from mindrl.checkpoint.rank_files import open_rank_files
from mindrl.errors import ModelError
from mindrl.models.decoder import always_float32
from mindrl.models.orientation import oriented
from mindrl.models.placement import Box, LocalTensor, Placement, index_of, intersect, relative
from mindrl.models.sharding import Sharding
from mindrl.observability.progress import tick

ReadBox = Callable[[str, Box], Tensor]
"""Returns a box of a logical tensor."""


@torch.no_grad()
def fill(local: Tensor, entry: LocalTensor, read: ReadBox) -> None:
    """Fill a local tensor by its table, reading only the boxes in it; padding becomes zero."""
    tick()
    local.zero_()
    for placement in entry.placements:
        part = read(placement.tensor, placement.source)
        oriented(local, placement.local, placement.axes).copy_(part)


def folder_reader(
    folder: str, stack: ExitStack, drawn: Mapping[str, Tensor] | None = None
) -> ReadBox:
    """Open a Hugging Face folder of logical tensors; the stack closes it.

    `drawn` supplies tensors that the folder lacks.

    Raises:
        ModelError: A file is missing, unreadable or differs from the index; when reading: the
            folder lacks the tensor, or has a smaller one.
    """
    files = open_tensors(folder, stack, framework="pt")

    def read(name: str, box: Box) -> Tensor:
        if name not in files:
            if drawn is None or name not in drawn:
                raise missing_tensor(folder, name)
            return drawn[name][index_of(box)]
        source = files[name].get_slice(name)
        shape = source.get_shape()
        if len(shape) != len(box) or any(
            stop > size for size, (_, stop) in zip(shape, box, strict=True)
        ):
            raise ModelError(
                f"{folder}: tensor {name} has shape {shape}, which is smaller than "
                "config.json requires"
            )
        part: Tensor = source[index_of(box)]
        return part

    return read


class _Piece(NamedTuple):
    """A part of a logical tensor in a rank's file."""

    file: Any
    name: str
    placement: Placement


def rank_file_reader(folder: str, sharding: Sharding, stack: ExitStack) -> ReadBox:
    """Open a folder of rank files, to assemble tensors from the ranks' parts.

    The stack closes it.

    Raises:
        ModelError: A file is missing or unreadable, or its tensors differ from its rank's.
    """
    files = open_rank_files(folder, sharding, stack, framework="pt")
    # Tensors on several ranks, such as a norm, are read from one of them.
    held: dict[str, dict[Box, _Piece]] = {}
    for shard, name, placement in sharding.placements():
        pieces = held.setdefault(placement.tensor, {})
        pieces.setdefault(placement.source, _Piece(files[shard], name, placement))

    def read(name: str, box: Box) -> Tensor:
        pieces = {
            common: piece
            for source, piece in held[name].items()
            if (common := intersect(source, box))
        }
        if box in pieces:
            return _cut(pieces[box], box)
        dtype = torch.float32 if always_float32(name) else TORCH_TYPES[sharding.dtype]
        found = torch.empty([stop - start for start, stop in box], dtype=dtype)
        for common, piece in pieces.items():
            found[index_of(relative(common, box))].copy_(_cut(piece, common))
        return found

    return read


def _cut(piece: _Piece, box: Box) -> Tensor:
    """Return a box of a logical tensor from a piece, with the logical dimensions."""
    local: Tensor = piece.file.get_slice(piece.name)[index_of(piece.placement.local_part(box))]
    return oriented(local, tuple((0, size) for size in local.shape), piece.placement.axes)
