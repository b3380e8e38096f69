"""The training state of a model in safetensors files: one per rank, each slice in one of them.

A slice is a box of a logical tensor or of its moments; its name in the file contains the box. The
files do not depend on the layout that wrote them, and any layout can read them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindrl.checkpoint.commits import WrittenFile, write_synced
from mindrl.checkpoint.export import bytes_of
from mindrl.checkpoint.files import file_header, open_file
from mindrl.errors import CheckpointError
from mindrl.models.placement import Box, index_of, intersect, relative, volume
from mindrl.observability.progress import tick

_NAME = re.compile(r"(?P<kind>\w+) (?P<tensor>\S+) (?P<box>\d+:\d+(,\d+:\d+)*)")


class NewSlice(NamedTuple):
    """A slice to write."""

    kind: str
    tensor: str
    box: Box
    values: Tensor
    """Values in logical dimensions, on the host; written as float32."""

    @property
    def name(self) -> str:
        """Name in the file."""
        box = ",".join(f"{start}:{stop}" for start, stop in self.box)
        return f"{self.kind} {self.tensor} {box}"


def write_state(path: Path, slices: Sequence[NewSlice]) -> WrittenFile:
    """Write slices to a new file, one after another, and wait until it is on disk.

    Raises:
        OSError: The file cannot be written.
    """
    return write_synced(path, _contents(slices))


def _contents(slices: Sequence[NewSlice]) -> Iterator[bytes | memoryview]:
    yield file_header((each.name, "float32", tuple(each.values.shape)) for each in slices)[0]
    for each in slices:
        assert each.values.numel() == volume(each.box), each.name
        yield bytes_of(each.values.float())


class _Piece(NamedTuple):
    box: Box
    file: Any
    name: str


class StateReader:
    """Reads boxes of a model's state, assembled from the slices in the files."""

    def __init__(self, paths: Sequence[Path], stack: ExitStack) -> None:
        """Open the files.

        Raises:
            ModelError: A file cannot be read.
        """
        self.pieces: dict[tuple[str, str], list[_Piece]] = {}
        for path in paths:
            file = stack.enter_context(open_file(path, "pt"))
            for name in file.keys():  # noqa: SIM118 - no mapping
                found = _NAME.fullmatch(name)
                if found is None:
                    raise CheckpointError(f"{path}: {name!r} is not the name of a tensor slice")
                box = tuple(
                    (int(start), int(stop))
                    for start, stop in (each.split(":") for each in found["box"].split(","))
                )
                key = found["kind"], found["tensor"]
                self.pieces.setdefault(key, []).append(_Piece(box, file, name))

    def read(self, kind: str, tensor: str, box: Box) -> Tensor:
        """Return a box, float32.

        Raises:
            CheckpointError: Some elements are in no file.
        """
        tick()
        found = torch.empty([stop - start for start, stop in box])
        missing = math.prod(found.shape)
        for piece in self.pieces.get((kind, tensor), ()):
            common = intersect(piece.box, box)
            if common is not None:
                part = piece.file.get_slice(piece.name)[index_of(relative(common, piece.box))]
                found[index_of(relative(common, box))] = part
                missing -= volume(common)
        if missing:
            raise CheckpointError(
                f"{kind} {tensor} {list(box)}: no file has {missing} of {found.numel()} elements"
            )
        return found
