"""A model cut for a training layout: one weight file per rank, and layout.json beside them.

A rank's file holds its local tensors under their local names, padding and all, so that a rank
needs no other file. Ranks that hold the same, such as data-parallel ones, share the file of the
first of them. Imports no torch.
"""

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from mindrl.allocation.meaning import layout_string, parse_training
from mindrl.checkpoint.files import check_shapes
from mindrl.checkpoint.safetensors_file import Framework, open_file
from mindrl.errors import ConfigError, ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import (
    ELEMENT_BYTES,
    DType,
    always_float32,
)
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import Sharding

LAYOUT_FILE = "layout.json"
_VERSION = 1


def rank_files(sharding: Sharding) -> tuple[str, ...]:
    """Return the name of the file that each rank's tensors are in."""
    first: dict[tuple[str, ...], int] = {}
    for rank, shards in enumerate(sharding.held_by):
        first.setdefault(shards, rank)
    count = len(sharding.held_by)
    return tuple(
        f"rank-{first[shards]:05}-of-{count:05}.safetensors" for shards in sharding.held_by
    )


def writing_ranks(sharding: Sharding) -> tuple[int, ...]:
    """Return the ranks that have a file of their own."""
    names = rank_files(sharding)
    return tuple(rank for rank, name in enumerate(names) if name not in names[:rank])


def dtype_of(entry: LocalTensor, dtype: DType) -> DType:
    """Return the type of a local tensor in a model of a type."""
    kept = any(always_float32(placement.tensor) for placement in entry.placements)
    return "float32" if kept else dtype


def table_bytes(table: ShardingTable, dtype: DType) -> int:
    """Count the bytes of a rank's tensors."""
    return sum(
        math.prod(entry.shape) * ELEMENT_BYTES[dtype_of(entry, dtype)] for entry in table.values()
    )


def layout_text(layout: TrainLayout, sharding: Sharding) -> str:
    """Return what layout.json says."""
    values = {
        "version": _VERSION,
        "layout": layout_string(layout),
        "layers_per_chunk": layout.layers_per_chunk,
        "dtype": sharding.dtype,
        "files": rank_files(sharding),
    }
    return json.dumps(values, indent=2) + "\n"


def read_layout(folder: str) -> tuple[TrainLayout, DType]:
    """Read the layout and the type of a folder of rank files.

    Raises:
        ModelError: layout.json is missing, unreadable or of another version.
    """
    path = Path(folder) / LAYOUT_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("version") != _VERSION:
        found = values.get("version") if isinstance(values, dict) else None
        raise ModelError(f"{path}: version={found!r} must be {_VERSION}")
    known: tuple[DType, ...] = get_args(DType)
    if values.get("dtype") not in known:
        found = values.get("dtype")
        raise ModelError(f"{path}: dtype={found!r} must be one of {', '.join(known)}")
    dtype = known[known.index(values["dtype"])]
    chunks = values.get("layers_per_chunk")
    if chunks is not None and not _are_counts(chunks):
        raise ModelError(f"{path}: layers_per_chunk={chunks!r} must be null or numbers of layers")
    try:
        layout = parse_training(str(values.get("layout")))
    except ConfigError as error:
        raise ModelError(f"{path}: layout={error}") from error
    return replace(layout, layers_per_chunk=chunks and tuple(chunks)), dtype


def open_rank_files(
    folder: str, sharding: Sharding, stack: ExitStack, *, framework: Framework
) -> Mapping[str, Any]:
    """Open the files of all ranks; returns the file that holds each shard.

    Args:
        folder: Of the rank files.
        side: Who holds what in them.
        stack: Closes the files.
        framework: Of the slices that are read.

    Raises:
        ModelError: A file is missing or unreadable, or does not hold what its rank holds.
    """
    names = rank_files(sharding)
    files: dict[str, Any] = {}
    for rank in writing_ranks(sharding):
        path = Path(folder) / names[rank]
        if not path.is_file():
            raise ModelError(f"{path} is missing; {LAYOUT_FILE} asks for it")
        file = stack.enter_context(open_file(path, framework))
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        wanted = {name: entry.shape for name, entry in sharding.table(rank).items()}
        check_shapes(str(path), found, wanted)
        files = dict.fromkeys(sharding.held_by[rank], file) | files
    return files


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and value > 0 for value in values
    )
