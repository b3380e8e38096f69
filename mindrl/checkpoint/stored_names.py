"""Names of logical tensors in the files of a model folder, if both names differ.

They differ in the folders of `models/nested_text.py`: the decoder has a prefix of its own, and
mixtures have the experts of a layer in two stacks. Tensors of other parts are kept as they are.
Imports no torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mindrl.models.config_file import decoder_class
from mindrl.models.decoder import HEAD, VALUE_HEAD
from mindrl.models.nested_text import FLAT_DECODER, NESTED_DECODER
from mindrl.models.placement import Shape

_STACKS: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
"""Stacks of experts: [experts, rows, columns], where an expert has these matrices in this order."""
_EXPERT = re.compile(r"(.+\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


class StoredPart(NamedTuple):
    """A logical tensor in a stored one, whose parts are consecutive."""

    stored: str
    """Name of the stored tensor."""
    expert: int | None = None
    """Index in a stack; None: the stored tensor is the logical one."""
    half: int = 0
    """Place among the expert's matrices."""
    halves: int = 1
    """Number of the expert's matrices in the stack."""


@dataclass(frozen=True, kw_only=True)
class StoredNames:
    """How a folder names logical tensors."""

    decoder: str = FLAT_DECODER
    """Prefix of the decoder's tensors."""
    has_stacks: bool = False
    """Whether the experts of a layer are in stacks."""

    def part(self, logical: str) -> StoredPart:
        """Return where a logical tensor is stored."""
        stored = logical
        if logical.startswith(FLAT_DECODER):
            stored = self.decoder + logical.removeprefix(FLAT_DECODER)
        found = _EXPERT.fullmatch(stored) if self.has_stacks else None
        if found is None:
            return StoredPart(stored)
        here, expert, matrix = found.groups()
        stack, matrices = next(each for each in _STACKS.items() if matrix in each[1])
        return StoredPart(here + stack, int(expert), matrices.index(matrix), len(matrices))

    def logical(self, stored: str, shape: Shape) -> Iterator[tuple[str, StoredPart]]:
        """Yield the logical tensors in a stored one; none in one that is only kept."""
        if not stored.startswith(self.decoder) and stored not in (HEAD, VALUE_HEAD):
            return
        name = stored
        if stored.startswith(self.decoder):
            name = FLAT_DECODER + stored.removeprefix(self.decoder)
        here, _, stack = name.rpartition(".")
        if not (self.has_stacks and here.endswith(".mlp.experts")):
            yield name, StoredPart(stored)
            return
        matrices = _STACKS[stack]
        for expert in range(shape[0]):
            for half, matrix in enumerate(matrices):
                part = StoredPart(stored, expert, half, len(matrices))
                yield f"{here}.{expert}.{matrix}_proj.weight", part

    def grouped(self, logical: Iterable[str]) -> dict[str, list[str]]:
        """Return the logical tensors in each stored one, in their order there."""
        found: dict[str, list[tuple[StoredPart, str]]] = {}
        for name in logical:
            part = self.part(name)
            found.setdefault(part.stored, []).append((part, name))
        return {stored: [name for _, name in sorted(parts)] for stored, parts in found.items()}

    def stored_shape(self, parts: Sequence[str], shape: Shape) -> Shape:
        """Return the shape of a stored tensor that consists of logical ones of a shape."""
        first = self.part(parts[0])
        if first.expert is None:
            return shape
        return (len(parts) // first.halves, first.halves * shape[0], *shape[1:])


FLAT = StoredNames()


def names_in(folder: str, stored: Iterable[str]) -> StoredNames:
    """Return the names of a folder by its config.json and the stored tensors, if it has any."""
    if decoder_class(folder) is None:
        return FLAT
    names = [*stored]
    # Released mixtures have stacks. Without experts it makes no difference.
    has_stacks = not names or any(name.endswith(".mlp.experts.gate_up_proj") for name in names)
    return StoredNames(decoder=NESTED_DECODER, has_stacks=has_stacks)


def logical_files(folder: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file of each logical tensor, given the open file of each stored one."""
    names = names_in(folder, files)
    if names == FLAT:
        return dict(files)
    return {
        name: _PartOfFile(file, part)
        for stored, file in files.items()
        for name, part in names.logical(stored, tuple(file.get_slice(stored).get_shape()))
    }


@dataclass(frozen=True)
class _PartOfFile:
    """An open file that has a logical tensor under another name, or in a stack."""

    file: Any
    part: StoredPart

    def get_slice(self, _: str) -> "_Slice":
        """Return the slice of the logical tensor."""
        return _Slice(self.file.get_slice(self.part.stored), self.part)


@dataclass(frozen=True)
class _Slice:
    """A logical tensor in a file, of which boxes can be read."""

    stored: Any
    part: StoredPart

    def get_shape(self) -> list[int]:
        shape = [*self.stored.get_shape()]
        if self.part.expert is None:
            return shape
        return [shape[1] // self.part.halves, *shape[2:]]

    def get_dtype(self) -> str:
        return str(self.stored.get_dtype())

    def __getitem__(self, index: Any) -> Any:
        if self.part.expert is None:
            return self.stored[index]
        rows, *others = index
        first = self.part.half * self.get_shape()[0]
        moved = slice(first + rows.start, first + rows.stop)
        return self.stored[self.part.expert, moved, *others]
