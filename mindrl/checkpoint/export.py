"""A model folder, written while its tensors arrive: it appears whole, or not at all."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mindrl.checkpoint.files import INDEX_FILE, file_header
from mindrl.errors import OutputError
from mindrl.models.decoder import ELEMENT_BYTES, VALUE_HEAD, DType, Head
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import dtype_of, table_bytes
from mindrl.observability.progress import tick

SHARD_BYTES = 5 << 30
TORCH_TYPES: Mapping[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EXPORT_FILE = "mindrl_export.json"
"""What is known of an export besides its weights."""
_CARRIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


@contextmanager
def new_folder(
    source: str,
    target: Path,
    *,
    dtype: DType,
    head: Head = "vocabulary",
    record: Mapping[str, object] | None = None,
) -> Iterator[Path]:
    """Make a folder beside the target, for weights; afterwards it takes the target's place.

    With the config and the tokenizer of `source`, the folder that the model came from, and with
    `record` in `EXPORT_FILE`. An older target is replaced; after an error there is nothing new.

    Raises:
        OutputError: The folder cannot be made.
    """
    with _beside(target) as building:
        with writing(target):
            building.mkdir(parents=True)
        yield building
        with writing(target):
            _carry_over(Path(source), building, dtype, head)
            if record is not None:
                write_json(building / EXPORT_FILE, record)
            _take_place(building, target)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say in the words of the user what keeps a model from being written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the model could not be exported to {target}: {error}") from error


def keep_folder(folder: Path, target: Path) -> None:
    """Keep a folder's files under a second name, whatever replaces the first; costs no room.

    Only a disk without hard links gets copies. An older target is replaced.

    Raises:
        OutputError: The target cannot be written.
    """
    try:
        with _beside(target) as building:
            shutil.copytree(folder, building, copy_function=_link_or_copy)
            _take_place(building, target)
    except OSError as error:
        raise OutputError(f"{folder} could not be kept as {target}: {error}") from error


def _carry_over(source: Path, building: Path, dtype: DType, head: Head) -> None:
    values = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    values["torch_dtype" if "torch_dtype" in values else "dtype"] = dtype
    if head == "value":
        # In transformers' words: each token has one number, a product without a bias.
        names = values.get("architectures") or []
        values |= {
            "architectures": [re.sub(r"For\w+$", "ForTokenClassification", name) for name in names],
            "id2label": {"0": "value"},
            "label2id": {"value": 0},
            "token_classification_bias": False,
        }
    write_json(building / "config.json", values)
    for name in _CARRIED_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, building / name)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a file as the other files of a model folder are written."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _link_or_copy(source: str, target: str) -> None:
    tick()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Name a folder beside the target, which is not there before, nor afterwards."""
    building = target.with_name(f".{target.name}.incomplete")
    shutil.rmtree(building, ignore_errors=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _take_place(building: Path, target: Path) -> None:
    retired = target.with_name(f".{target.name}.replaced")
    if target.exists():
        # A killed export may have left one, which would block the renaming.
        shutil.rmtree(retired, ignore_errors=True)
        target.rename(retired)
    building.rename(target)
    shutil.rmtree(retired, ignore_errors=True)


def bytes_of(tensor: Tensor) -> memoryview:
    """Look at the bytes of a tensor on the host, row by row; of one that is strewn, at a copy's."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


class TensorFile:
    """A safetensors file that takes its tensors one at a time, so that none waits in memory.

    It knows all types and shapes beforehand; so each tensor has its place, in whatever order.
    """

    def __init__(self, path: Path, table: ShardingTable, dtype: DType) -> None:
        """Begin a new file with its header; `dtype` is of all but what is always float32.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = path
        self.kinds = {name: (dtype_of(entry, dtype), entry.shape) for name, entry in table.items()}
        # The wider type first, so that each tensor starts at a multiple of its element's size.
        order = sorted(table, key=lambda name: (-ELEMENT_BYTES[self.kinds[name][0]], name))
        header, self.starts = file_header((name, *self.kinds[name]) for name in order)
        with path.open("xb") as file:
            file.write(header)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in its place.

        Raises:
            OSError: The file cannot be written.
        """
        dtype, shape = self.kinds[name]
        assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_TYPES[dtype], shape), name
        with self.path.open("r+b") as file:
            file.seek(self.starts[name])
            file.write(bytes_of(tensor))


@dataclass(frozen=True)
class ExportedModel:
    """Takes whole logical tensors, and puts each in its file as soon as it is complete.

    So host memory holds only those that are being filled; which tensors share a file does not
    depend on who comes first.
    """

    target: Path
    files: Mapping[str, TensorFile]
    """Where each tensor belongs."""
    folder: Path | None = None
    """What is going to be the target, and may take further files; None where nothing is written."""
    filling: dict[str, Tensor] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)

    def open(self, name: str) -> Tensor:
        """Return the host memory that takes a tensor."""
        if name not in self.filling:
            dtype, shape = self.files[name].kinds[name]
            self.filling[name] = torch.empty(shape, dtype=TORCH_TYPES[dtype])
        return self.filling[name]

    def close(self, name: str) -> None:
        """Take a tensor as complete.

        Raises:
            OutputError: The file cannot be written.
        """
        tick()
        with writing(self.target):
            self.files[name].write(name, self.filling.pop(name))
        self.complete.add(name)


@contextmanager
def exported_model(
    source: str,
    target: Path,
    table: ShardingTable,
    *,
    dtype: DType,
    shard_bytes: int = SHARD_BYTES,
    record: Mapping[str, object] | None = None,
) -> Iterator[ExportedModel]:
    """Write a folder of safetensors into what `new_folder` makes, while the context lasts.

    The table has the logical tensors; it is empty on a rank that writes nothing. A file takes
    tensors of up to `shard_bytes`, or one larger tensor.

    Raises:
        OutputError: The folder cannot be made.
    """
    if not table:
        yield ExportedModel(target, {})
        return
    head: Head = "value" if VALUE_HEAD in table else "vocabulary"
    with new_folder(source, target, dtype=dtype, head=head, record=record) as building:
        with writing(target):
            files = _new_files(building, table, dtype, shard_bytes)
        model = ExportedModel(target, files, building)
        yield model
        missing = len(files.keys() - model.complete)
        assert not missing, f"{missing} tensors never came"


def _new_files(
    folder: Path, table: ShardingTable, dtype: DType, shard_bytes: int
) -> dict[str, TensorFile]:
    """Begin files that lack nothing but their tensors, named as transformers does.

    With an index where there are several.
    """
    groups = list(_grouped(table, dtype, shard_bytes))
    count = len(groups)
    files: dict[str, TensorFile] = {}
    for number, group in enumerate(groups, start=1):
        name = f"model-{number:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors"
        files |= dict.fromkeys(group, TensorFile(folder / name, group, dtype))
    if count > 1:
        index = {name: files[name].path.name for name in sorted(files)}
        total = {"total_size": table_bytes(table, dtype)}
        write_json(folder / INDEX_FILE, {"metadata": total, "weight_map": index})
    return files


def _grouped(table: ShardingTable, dtype: DType, shard_bytes: int) -> Iterator[ShardingTable]:
    """Deal tensors to files in their order."""
    group: dict[str, LocalTensor] = {}
    group_bytes = 0
    for name, entry in table.items():
        size = table_bytes({name: entry}, dtype)
        if group and group_bytes + size > shard_bytes:
            yield group
            group, group_bytes = {}, 0
        group[name] = entry
        group_bytes += size
    yield group
