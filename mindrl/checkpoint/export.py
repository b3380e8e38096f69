"""Write a model folder while its tensors arrive: it appears complete, or not at all."""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mindrl.checkpoint.carried_files import SAME_TOKENIZER, RunTokenizer, carry_files
from mindrl.checkpoint.files import INDEX_FILE, WHOLE_FILE, file_header
from mindrl.checkpoint.kept_tensors import carry_kept, names_of
from mindrl.checkpoint.stored_names import FLAT, StoredNames
from mindrl.errors import ModelError, OutputError
from mindrl.models.decoder import ELEMENT_BYTES, VALUE_HEAD, DType
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import dtype_of, table_bytes
from mindrl.observability.progress import tick
from mindrl.observability.regular_files import read_regular_text

SHARD_BYTES = 5 << 30
TORCH_TYPES: Mapping[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HeadScope = Literal["token", "sequence"]
"""What a value head scores: each token, or a sequence at its last token."""
EXPORT_FILE = "mindrl_export.json"
"""Metadata of an export."""


@contextmanager
def new_folder(
    source: str,
    target: Path,
    *,
    dtype: DType,
    held: Collection[str],
    scores: HeadScope | None = None,
    tokenizer: RunTokenizer = SAME_TOKENIZER,
) -> Iterator[Path]:
    """Create a temporary folder for weights next to the target, and rename it afterwards.

    Adds the config, the tokenizer and the tensors outside the model of `source`, the folder that
    the model came from. `held` are the model's logical tensors, and `scores` is what its value
    head scores; None for another head. Replaces an older target; an error leaves nothing new.

    Raises:
        OutputError: The folder cannot be created.
    """
    with _temporary_folder(target) as building:
        with writing(target):
            building.mkdir(parents=True)
        yield building
        with writing(target):
            _write_config(Path(source), building, dtype, scores)
            carry_files(Path(source), building, tokenizer)
            if (index := carry_kept(Path(source), building, held)) is not None:
                write_json(building / INDEX_FILE, index)
            _take_place(building, target)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn an error about a file into one that names the export's target."""
    try:
        yield
    except (OSError, ModelError) as error:
        raise OutputError(f"cannot export the model to {target}: {error}") from error


def keep_folder(folder: Path, target: Path) -> None:
    """Hard-link a folder's files under a second name, which takes no space.

    Copies them only if the disk has no hard links. Replaces an older target.

    Raises:
        OutputError: The target cannot be written.
    """
    try:
        with _temporary_folder(target) as building:
            shutil.copytree(folder, building, copy_function=_link_or_copy)
            _take_place(building, target)
    except OSError as error:
        raise OutputError(f"cannot keep {folder} as {target}: {error}") from error


def _write_config(source: Path, building: Path, dtype: DType, scores: HeadScope | None) -> None:
    values = json.loads(read_regular_text(source / "config.json"))
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    for part in (values, values.get("text_config")):
        if part is not None:
            part["torch_dtype" if "torch_dtype" in part else "dtype"] = dtype
    if scores is not None:
        # In transformers' format: one number per token or sequence, without a bias.
        names, kind = values.get("architectures") or [], f"For{scores.title()}Classification"
        values |= {
            "architectures": [re.sub(r"For\w+$", kind, name) for name in names],
            "id2label": {"0": "value"},
            "label2id": {"value": 0},
        }
        if scores == "token":
            values["token_classification_bias"] = False
    write_json(building / "config.json", values)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON file in the format of a model folder."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _link_or_copy(source: str, target: str) -> None:
    tick()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def incomplete(target: Path) -> Path:
    """Return the folder in which a target is written."""
    return target.with_name(f".{target.name}.incomplete")


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder next to the target; remove it before and afterwards."""
    building = incomplete(target)
    shutil.rmtree(building, ignore_errors=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _take_place(building: Path, target: Path) -> None:
    retired = target.with_name(f".{target.name}.replaced")
    if target.exists():
        # A killed export may have left this folder, which would block the rename.
        shutil.rmtree(retired, ignore_errors=True)
        target.rename(retired)
    building.rename(target)
    shutil.rmtree(retired, ignore_errors=True)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a host tensor in row-major order; copies a non-contiguous one."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


class TensorFile:
    """A safetensors file that is written one tensor at a time, so that none waits in memory.

    All dtypes and shapes are known in advance, so tensors may arrive in any order.
    """

    def __init__(
        self, path: Path, table: ShardingTable, dtype: DType, names: StoredNames = FLAT
    ) -> None:
        """Lay out a file, which is created with its first tensor.

        Always-float32 tensors ignore `dtype`. `names` are their names in the file.
        """
        self.path = path
        self.is_created = False
        self.kinds = {name: (dtype_of(entry, dtype), entry.shape) for name, entry in table.items()}
        parts = names.grouped(table)
        kinds = {stored: self.kinds[each[0]] for stored, each in parts.items()}
        # The wider dtype first, so that each tensor is aligned to its element size.
        order = sorted(parts, key=lambda stored: (-ELEMENT_BYTES[kinds[stored][0]], stored))
        self.header, starts = file_header(
            (stored, kinds[stored][0], names.stored_shape(parts[stored], kinds[stored][1]))
            for stored in order
        )
        self.starts: dict[str, int] = {}
        for stored, each in parts.items():
            sizes = [table_bytes({name: table[name]}, dtype) for name in each]
            places = accumulate(sizes[:-1], initial=starts[stored])
            self.starts |= zip(each, places, strict=True)
        self.nbytes = len(self.header) + table_bytes(table, dtype)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write a tensor at its offset.

        Raises:
            OSError: The file cannot be written.
        """
        dtype, shape = self.kinds[name]
        assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_TYPES[dtype], shape), name
        if not self.is_created:
            self.path.write_bytes(self.header)
            self.is_created = True
        with self.path.open("r+b") as file:
            file.seek(self.starts[name])
            file.write(bytes_of(tensor))


@dataclass(frozen=True)
class ExportedModel:
    """Receives whole logical tensors, and writes each to its file when it is complete.

    Host memory holds only the tensors being filled; the assignment of tensors to files does not
    depend on their arrival order.
    """

    target: Path
    files: Mapping[str, TensorFile]
    """File of each tensor."""
    filling: dict[str, Tensor] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)

    def check_complete(self) -> None:
        """Check that all tensors have been written."""
        missing = len(self.files.keys() - self.complete)
        assert not missing, f"{missing} tensors were not sent"

    def open(self, name: str) -> Tensor:
        """Return the host memory of a tensor."""
        if name not in self.filling:
            dtype, shape = self.files[name].kinds[name]
            self.filling[name] = torch.empty(shape, dtype=TORCH_TYPES[dtype])
        return self.filling[name]

    def close(self, name: str) -> None:
        """Write a complete tensor and free its memory.

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
    scores: HeadScope | None = "token",
) -> Iterator[ExportedModel]:
    """Write a folder of safetensors with `new_folder`, while the context lasts.

    The table has the logical tensors. A file gets tensors of up to `shard_bytes`, or one larger
    tensor. `scores=None` keeps the architecture in the source's config.json.

    Raises:
        OutputError: The folder cannot be created.
    """
    names = names_of(source)
    tables = file_tables(table, dtype, shard_bytes, names)
    scored = scores if VALUE_HEAD in table else None
    with new_folder(source, target, dtype=dtype, held=table.keys(), scores=scored) as building:
        model = ExportedModel(target, new_files(building, tables, dtype, names))
        yield model
        model.check_complete()
        with writing(target):
            write_index(building, tables, dtype, names)


def file_tables(
    table: ShardingTable,
    dtype: DType,
    shard_bytes: int = SHARD_BYTES,
    names: StoredNames = FLAT,
) -> dict[str, ShardingTable]:
    """Return the tensors of each file of a model folder, by its name as in transformers."""
    groups = list(_grouped(table, dtype, shard_bytes, names))
    count = len(groups)
    if count == 1:
        return {WHOLE_FILE: groups[0]}
    files = (f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1))
    return dict(zip(files, groups, strict=True))


def new_files(
    folder: Path,
    tables: Mapping[str, ShardingTable],
    dtype: DType,
    names: StoredNames = FLAT,
) -> dict[str, TensorFile]:
    """Return the file of each tensor, which is created with its first one."""
    files: dict[str, TensorFile] = {}
    for name, table in tables.items():
        files |= dict.fromkeys(table, TensorFile(folder / name, table, dtype, names))
    return files


def check_sizes(
    folder: Path,
    tables: Mapping[str, ShardingTable],
    dtype: DType,
    names: StoredNames = FLAT,
) -> None:
    """Check the files that ranks have written.

    Raises:
        OSError: A file is missing.
        OutputError: A file has another size.
    """
    for name, table in tables.items():
        path, wanted = folder / name, TensorFile(folder / name, table, dtype, names).nbytes
        if (found := path.stat().st_size) != wanted:
            raise OutputError(
                f"{path} has {found} bytes, but {wanted} were written; all nodes must share this "
                "folder"
            )


def write_index(
    folder: Path,
    tables: Mapping[str, ShardingTable],
    dtype: DType,
    names: StoredNames = FLAT,
) -> None:
    """Write the index of a folder with several files."""
    if len(tables) == 1:
        return
    places = {name: file for file, table in tables.items() for name in names.grouped(table)}
    total = sum(table_bytes(table, dtype) for table in tables.values())
    index = {name: places[name] for name in sorted(places)}
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": index})


def _grouped(
    table: ShardingTable, dtype: DType, shard_bytes: int, names: StoredNames
) -> Iterator[ShardingTable]:
    """Yield the tensors of each file, in the order of the table; a stored tensor is in one file."""
    group: dict[str, LocalTensor] = {}
    group_bytes = 0
    for parts in names.grouped(table).values():
        stored = {name: table[name] for name in parts}
        size = table_bytes(stored, dtype)
        if group and group_bytes + size > shard_bytes:
            yield group
            group, group_bytes = {}, 0
        group |= stored
        group_bytes += size
    yield group
