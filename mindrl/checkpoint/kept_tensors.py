"""Tensors of a folder that are no part of the model: a run copies them into its exports.

Such are layers that draft tokens (multi-token prediction), and the vision towers of
`models/nested_text.py`. Their bytes stay as they are, in a file of their own. Imports no torch.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from mindrl.checkpoint.files import INDEX_FILE, WHOLE_FILE, header_bytes, read_index
from mindrl.checkpoint.rank_files import LAYOUT_FILE
from mindrl.checkpoint.stored_names import FLAT, StoredNames, names_in
from mindrl.errors import ModelError
from mindrl.models.decoder import HEAD, VALUE_HEAD
from mindrl.models.placement import Shape
from mindrl.observability.progress import tick
from mindrl.observability.regular_files import open_regular

KEPT_FILE = "model-kept.safetensors"
_MODEL_FILES = "model*.safetensors"
_COPY_BYTES = 16 << 20
_LENGTH_BYTES = 8


class _Stored(NamedTuple):
    """A tensor in a file."""

    path: Path
    dtype: str
    shape: Shape
    start: int
    """Offset of its first byte."""
    nbytes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of an element; 0 for a tensor without any."""
        return self.nbytes // (math.prod(self.shape) or 1)


def names_of(folder: str) -> StoredNames:
    """Return the tensor names in a folder's files; for rank files, those of a Hugging Face folder.

    Raises:
        ModelError: A file is unreadable.
    """
    if names_in(folder, ()) == FLAT:
        return FLAT
    path = Path(folder)
    return names_in(folder, () if (path / LAYOUT_FILE).exists() else _stored(path))


def kept_names(names: StoredNames, stored: Iterable[str], held: Collection[str]) -> set[str]:
    """Return the stored tensors that are no part of a model; `held` are its logical ones.

    Heads are left out: a model that has lost its head, or ties it, has no use for an older one.
    """
    return {*stored} - names.grouped(held).keys() - {HEAD, VALUE_HEAD}


def carry_kept(source: Path, building: Path, held: Collection[str]) -> dict[str, object] | None:
    """Copy the tensors that are no part of the model into a folder of exported files.

    `held` are the model's logical tensors. A single file of weights gets a numbered name, because
    transformers reads no index next to `WHOLE_FILE`. Without an index, tensors of other formats
    and of adapters may lie in files of other names: those stay behind.

    Returns:
        The folder's index with them; None if the index needs no change.

    Raises:
        ModelError: A file is unreadable.
        OSError: A file cannot be written.
    """
    stored = _stored(source)
    pattern = "*" if (source / INDEX_FILE).exists() else _MODEL_FILES
    kept = {
        name: stored[name]
        for name in kept_names(names_of(str(source)), stored, held)
        if stored[name].path.match(pattern)
    }
    if not kept:
        return None
    # The wider dtype first, so that each tensor is aligned to its element size.
    order = sorted(kept, key=lambda name: (-kept[name].element_bytes, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name in order:
        each, start = kept[name], stop
        stop += each.nbytes
        header[name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": [start, stop]}
    with (building / KEPT_FILE).open("wb") as target:
        target.write(header_bytes(header))
        for name in order:
            _copy(kept[name], target)
    if (whole := building / WHOLE_FILE).exists():
        whole.rename(building / "model-00001-of-00001.safetensors")
    return _index(building)


def _stored(folder: Path) -> dict[str, _Stored]:
    """Return a folder's tensors by their names in its files; next to rank files only kept ones.

    Raises:
        ModelError: A file is unreadable.
    """
    pattern = KEPT_FILE if (folder / LAYOUT_FILE).exists() else "*.safetensors"
    index = read_index(folder / INDEX_FILE)
    return {
        name: each
        for path in sorted(folder.glob(pattern))
        for name, each in _in_file(path)
        if index is None or index.get(name) == path.name
    }


def _in_file(path: Path) -> Iterator[tuple[str, _Stored]]:
    try:
        with open_regular(path) as file:
            before = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(file.read(before))
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                at, shape = _LENGTH_BYTES + before + start, tuple(entry["shape"])
                yield name, _Stored(path, entry["dtype"], shape, at, stop - start)
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def _copy(tensor: _Stored, target: IO[bytes]) -> None:
    left = tensor.nbytes
    with open_regular(tensor.path) as source:
        source.seek(tensor.start)
        while left:
            piece = source.read(min(left, _COPY_BYTES))
            if not piece:
                raise ModelError(f"cannot read {tensor.path}: it is truncated")
            target.write(piece)
            left -= len(piece)
            tick()


def _index(building: Path) -> dict[str, object] | None:
    """Return the index of all tensors of a folder; None for a folder of rank files."""
    found = dict(each for path in building.glob(_MODEL_FILES) for each in _in_file(path))
    if all(each.path.name == KEPT_FILE for each in found.values()):
        return None
    total = sum(each.nbytes for each in found.values())
    places = {name: found[name].path.name for name in sorted(found)}
    return {"metadata": {"total_size": total}, "weight_map": places}
