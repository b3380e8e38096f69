"""Boxes of logical tensors, read from the weight files of either kind of folder."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindrl.checkpoint.files import missing_tensor, open_tensors
from mindrl.checkpoint.rank_files import open_rank_files
from mindrl.checkpoint.tensor_file import TORCH_TYPES
from mindrl.errors import ModelError
from mindrl.models.decoder import always_float32
from mindrl.models.orientation import oriented
from mindrl.models.placement import Box, LocalTensor, Placement, index_of, intersect
from mindrl.models.sharding import Sharding

ReadBox = Callable[[str, Box], Tensor]
"""Returns a box of a logical tensor."""


@torch.no_grad()
def fill(local: Tensor, entry: LocalTensor, read: ReadBox) -> None:
    """Fill a local tensor by its table, reading only what lies in it; padding becomes zero."""
    local.zero_()
    for placement in entry.placements:
        part = read(placement.tensor, placement.source)
        oriented(local, placement.local, placement.axes).copy_(part)


class FolderReader:
    """Reads the weights of a Hugging Face folder, which holds logical tensors as they are."""

    def __init__(
        self, folder: str, stack: ExitStack, drawn: Mapping[str, Tensor] | None = None
    ) -> None:
        """Open the files.

        Args:
            folder: Of the model.
            stack: Closes the files.
            drawn: Logical tensors that take the place of those that the folder lacks.

        Raises:
            ModelError: A file is missing, unreadable or not what the index says.
        """
        self.folder = folder
        self.drawn = drawn or {}
        self.files = open_tensors(folder, stack, framework="pt")

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a logical tensor.

        Raises:
            ModelError: The folder has no such tensor, or a smaller one.
        """
        if name not in self.files:
            if name not in self.drawn:
                raise missing_tensor(self.folder, name)
            return self.drawn[name][index_of(box)]
        source = self.files[name].get_slice(name)
        shape = source.get_shape()
        fits = len(shape) == len(box) and all(
            stop <= size for size, (_, stop) in zip(shape, box, strict=True)
        )
        if not fits:
            raise ModelError(
                f"{self.folder}: tensor {name} has shape {shape}, config.json asks for more"
            )
        part: Tensor = source[index_of(box)]
        return part


class _Piece(NamedTuple):
    """A part of a logical tensor in a rank's file."""

    file: Any
    name: str
    placement: Placement


class RankFileReader:
    """Reads the weights of a folder of rank files, put together from what each rank holds."""

    def __init__(self, folder: str, sharding: Sharding, stack: ExitStack) -> None:
        """Open the files.

        Raises:
            ModelError: A file is missing or unreadable, or does not hold what its rank holds.
        """
        self.dtype = sharding.dtype
        files = open_rank_files(folder, sharding, stack, framework="pt")
        # What several ranks hold, such as a norm, is read from one of them.
        self.pieces: dict[str, dict[Box, _Piece]] = {}
        for shard, table in sharding.shards.items():
            for name, entry in table.items():
                for placement in entry.placements:
                    pieces = self.pieces.setdefault(placement.tensor, {})
                    pieces.setdefault(placement.source, _Piece(files[shard], name, placement))

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a logical tensor."""
        pieces = [
            (common, piece)
            for source, piece in self.pieces[name].items()
            if (common := intersect(source, box))
        ]
        for common, piece in pieces:
            if common == box:
                return _cut(piece, box)
        dtype = torch.float32 if always_float32(name) else TORCH_TYPES[self.dtype]
        found = torch.empty([stop - start for start, stop in box], dtype=dtype)
        for common, piece in pieces:
            found[_relative(common, box)].copy_(_cut(piece, common))
        return found


def _cut(piece: _Piece, box: Box) -> Tensor:
    """Return what a piece holds of a logical tensor, with the logical dimensions."""
    local: Tensor = piece.file.get_slice(piece.name)[index_of(piece.placement.local_part(box))]
    return oriented(local, tuple((0, size) for size in local.shape), piece.placement.axes)


def _relative(part: Box, box: Box) -> tuple[slice, ...]:
    return tuple(
        slice(start - first, stop - first)
        for (start, stop), (first, _) in zip(part, box, strict=True)
    )
