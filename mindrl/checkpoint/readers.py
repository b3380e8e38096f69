"""Boxes of logical tensors, read from the weight files of either kind of folder."""

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
    """Fill a local tensor by its table, reading only what lies in it; padding becomes zero."""
    tick()
    local.zero_()
    for placement in entry.placements:
        part = read(placement.tensor, placement.source)
        oriented(local, placement.local, placement.axes).copy_(part)


def folder_reader(
    folder: str, stack: ExitStack, drawn: Mapping[str, Tensor] | None = None
) -> ReadBox:
    """Open a Hugging Face folder, which holds logical tensors as they are; the stack closes it.

    What it lacks may be among the tensors that were drawn.

    Raises:
        ModelError: A file is missing, unreadable or not what the index says; while it is read: the
            folder has no such tensor, or a smaller one.
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
                f"{folder}: tensor {name} has shape {shape}, config.json asks for more"
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
    """Open a folder of rank files, to put tensors together from what each rank holds.

    The stack closes it.

    Raises:
        ModelError: A file is missing or unreadable, or does not hold what its rank holds.
    """
    files = open_rank_files(folder, sharding, stack, framework="pt")
    # What several ranks hold, such as a norm, is read from one of them.
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
    """Return what a piece holds of a logical tensor, with the logical dimensions."""
    local: Tensor = piece.file.get_slice(piece.name)[index_of(piece.placement.local_part(box))]
    return oriented(local, tuple((0, size) for size in local.shape), piece.placement.axes)
