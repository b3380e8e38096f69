"""Open and check the weight files of a model folder. Imports no torch."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from mindrl.checkpoint.stored_names import logical_files
from mindrl.errors import ModelError
from mindrl.models.decoder import ELEMENT_BYTES, VALUE_HEAD, DType, Head, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Shape
from mindrl.observability.regular_files import check_regular, open_regular, read_regular_text

INDEX_FILE = "model.safetensors.index.json"
WHOLE_FILE = "model.safetensors"
"""The weight file of a folder without an index; transformers reads no index next to it."""
Framework = Literal["np", "pt"]
"""Type of slices read from a file: `np` needs no torch."""

_CODES: Mapping[DType, str] = {"float32": "F32", "bfloat16": "BF16"}
"""Names of dtypes in safetensors."""
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""Limit of the format; a larger value is not a header."""


def check_files(
    folder: str,
    model: ModelDescription,
    *,
    head: Head = "vocabulary",
    draws_missing_head: bool = False,
) -> None:
    """Compare the weight files with config.json, by their headers only.

    `draws_missing_head` allows a missing value head, which is then drawn at random.

    Raises:
        ModelError: A file is missing, unreadable or differs from the index, a tensor is missing or
            has another shape, or a tensor of a user's network is not in its table.
    """
    found, wanted = tensor_shapes(folder), logical_shapes(model, head=head)
    if draws_missing_head and VALUE_HEAD not in found:
        wanted.pop(VALUE_HEAD, None)
    own = model.other and model.other.own
    check_shapes(folder, found, wanted, f"the table of {own.spec}" if own else "config.json")
    if own:
        for name in sorted(found.keys() - logical_shapes(model).keys() - {VALUE_HEAD}):
            raise ModelError(f"{folder}: tensor {name} is not in the table of {own.spec}")


def missing_tensor(
    place: str, name: str, shape: Sequence[int] | None = None, asker: str = "config.json"
) -> ModelError:
    """Return the error about a tensor that a folder or file lacks."""
    asked = "" if shape is None else f"; {asker} needs {list(shape)}"
    if name == VALUE_HEAD:
        asked = "; a reward model needs this head, and a causal language model lacks it"
    return ModelError(f"{place}: no tensor {name}{asked}")


def check_shapes(
    place: str,
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    asker: str = "config.json",
) -> None:
    """Compare the tensors of a folder or file with the expected shapes.

    Raises:
        ModelError: A tensor is missing or has another shape.
    """
    for name, shape in wanted.items():
        if name not in found:
            raise missing_tensor(place, name, shape, asker)
        if found[name] != shape:
            raise ModelError(
                f"{place}: tensor {name} has shape {list(found[name])}; {asker} needs {list(shape)}"
            )


def head_in(found: Collection[str], model: ModelDescription) -> Head:
    """Return the head of stored weights, given the names of their tensors.

    A model that has lost its head counts as a language model.
    """
    vocabulary = logical_shapes(model).keys() - logical_shapes(model, head="value").keys()
    return "value" if VALUE_HEAD in found and vocabulary.isdisjoint(found) else "vocabulary"


def tensor_shapes(folder: str) -> Mapping[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a folder.

    Raises:
        ModelError: As for `open_tensors`.
    """
    with ExitStack() as stack:
        return shapes_in(open_tensors(folder, stack, framework="np"))


def shapes_in(files: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors, given the open file of each."""
    return {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}


def file_header(tensors: Iterable[tuple[str, DType, Shape]]) -> tuple[bytes, dict[str, int]]:
    """Lay out the tensors of a new safetensors file, in their order.

    Returns:
        The bytes before the first tensor, and each tensor's offset in the file, in bytes.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    places: dict[str, int] = {}
    stop = 0
    for name, dtype, shape in tensors:
        places[name] = stop
        stop += math.prod(shape) * ELEMENT_BYTES[dtype]
        offsets = [places[name], stop]
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": offsets}
    begin = header_bytes(header)
    return begin, {name: len(begin) + place for name, place in places.items()}


def header_bytes(header: Mapping[str, object]) -> bytes:
    """Return the bytes of a safetensors file before its first tensor."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def open_tensors(folder: str, stack: ExitStack, *, framework: Framework) -> dict[str, Any]:
    """Open the weight files, which the stack closes; returns the file of each logical tensor.

    With an index only the tensors that it lists count, otherwise those of all files.

    Raises:
        ModelError: There is no weight file, one is missing, unreadable or differs from the index,
            or a tensor is in two files.
    """
    return logical_files(folder, _open_stored(folder, stack, framework))


def _open_stored(folder: str, stack: ExitStack, framework: Framework) -> dict[str, Any]:
    """Return the file of each tensor, by its name in the file."""
    index = read_index(Path(folder) / INDEX_FILE)
    if index is not None:
        return _open_indexed(Path(folder), index, stack, framework)
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise ModelError(f"model folder {folder} has no .safetensors file{_others(Path(folder))}")
    files: dict[str, Any] = {}
    found_in: dict[str, Path] = {}
    for path in paths:
        file = stack.enter_context(open_file(path, framework))
        for name in file.keys():  # noqa: SIM118 - not a mapping
            if name in found_in:
                other = found_in[name].name
                raise ModelError(f"{folder}: tensor {name} is in {other} and in {path.name}")
            files[name], found_in[name] = file, path
    return files


def _open_indexed(
    folder: Path, index: Mapping[str, str], stack: ExitStack, framework: Framework
) -> dict[str, Any]:
    placed: dict[str, list[str]] = {}
    for tensor, file_name in index.items():
        placed.setdefault(file_name, []).append(tensor)
    files: dict[str, Any] = {}
    for file_name, tensors in sorted(placed.items()):
        path = folder / file_name
        if not path.is_file():
            raise ModelError(
                f"{path} is missing; {INDEX_FILE} lists {len(tensors)} tensors in it, the "
                f"first is {tensors[0]}"
            )
        file = stack.enter_context(open_file(path, framework))
        held = set(file.keys())
        for tensor in tensors:
            if tensor not in held:
                raise ModelError(f"{path}: no tensor {tensor}, which {INDEX_FILE} lists there")
        # A tensor that the index does not list is ignored.
        for tensor in sorted((held & index.keys()) - set(tensors)):
            raise ModelError(
                f"{path}: unexpected tensor {tensor}; {INDEX_FILE} lists it in {index[tensor]}"
            )
        files |= dict.fromkeys(tensors, file)
    return files


def read_index(path: Path) -> dict[str, str] | None:
    """Return the file of each tensor; None if there is no index.

    Raises:
        ModelError: It is unreadable.
    """
    try:
        values = json.loads(read_regular_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{path} has no weight_map, which maps each tensor to its file")
    for tensor, name in places.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{path}: weight_map.{tensor}={name!r} must be a file in its folder")
    return places


def open_file(path: Path, framework: Framework) -> Any:
    """Open a safetensors file; the caller closes it.

    Raises:
        ModelError: It cannot be read; for a truncated file, the error names the first incomplete
            tensor.
    """
    try:
        check_regular(path)
        return safe_open(path, framework=framework)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {_damage(path) or error}") from error


def _damage(path: Path) -> str | None:
    """Return the damage of a file; None without damage, or if the file is unknown."""
    try:
        found_bytes = path.stat().st_size
        with open_regular(path) as file:
            start = file.read(_LENGTH_BYTES)
            header_bytes = int.from_bytes(start, "little")
            header = file.read(header_bytes) if header_bytes <= _MOST_HEADER_BYTES else None
        before = _LENGTH_BYTES + header_bytes
        if start == b"version ":
            return "it is a Git LFS pointer; fetch the file with git lfs pull"
        if len(start) < _LENGTH_BYTES:
            return f"it is truncated: {found_bytes} bytes, no header"
        if header is not None and found_bytes < before:
            return f"it is truncated inside the header: {found_bytes} of {before} bytes"
        stops = _stops(json.loads(header or b""))
    except (OSError, ValueError):
        return None
    cut = [name for stop, name in stops if before + stop > found_bytes]
    if not cut:
        return None
    return (
        f"it is truncated: {found_bytes} of {before + stops[-1][0]} bytes; the first "
        f"incomplete tensor is {cut[0]}"
    )


def _stops(header: object) -> list[tuple[int, str]]:
    """Return the end of each tensor after the header, in file order."""
    stops = []
    for name, entry in header.items() if isinstance(header, dict) else ():
        match entry:
            case {"data_offsets": [int(), int(stop)]}:
                stops.append((stop, name))
    return sorted(stops)


def _others(folder: Path) -> str:
    """Return a hint about weights in another format; empty if there are none."""
    found = sorted(each.name for each in folder.glob("*") if each.suffix in _OTHER_FORMATS)
    return (
        f"; it has {found[0]}: save_pretrained of transformers writes safetensors" if found else ""
    )


_OTHER_FORMATS = (".bin", ".pth", ".gguf")
