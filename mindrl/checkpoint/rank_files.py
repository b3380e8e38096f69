"""A model cut for a training layout: one weight file per rank, and layout.json next to them.

A rank's file has its local tensors under their local names, padding included, so a rank needs no
other file. Ranks that hold the same tensors, such as data-parallel ones, share the file of the
first of them. Imports no torch.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from mindrl.allocation.meaning import layout_string, parse_training
from mindrl.checkpoint.files import Framework, check_shapes, open_file, shapes_in
from mindrl.config.backends import TrainingBackend, training_backend_of
from mindrl.errors import ConfigError, ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import VALUE_HEAD, DType, Head
from mindrl.models.sharding import Sharding
from mindrl.observability.regular_files import read_regular_text

LAYOUT_FILE = "layout.json"
_VERSION = 1


def rank_files(sharding: Sharding) -> tuple[str, ...]:
    """Return the file name of each rank's tensors."""
    first: dict[tuple[str, ...], int] = {}
    for rank, shards in enumerate(sharding.held_by):
        first.setdefault(shards, rank)
    count = len(sharding.held_by)
    return tuple(
        f"rank-{first[shards]:05}-of-{count:05}.safetensors" for shards in sharding.held_by
    )


def writing_ranks(sharding: Sharding) -> tuple[int, ...]:
    """Return the ranks that write a file."""
    names = rank_files(sharding)
    return tuple(rank for rank, name in enumerate(names) if name not in names[:rank])


def layout_record(
    layout: TrainLayout, sharding: Sharding, backend: TrainingBackend
) -> dict[str, object]:
    """Return the content of layout.json."""
    return {
        "version": _VERSION,
        "layout": layout_string(layout, backend),
        "layers_per_chunk": layout.layers_per_chunk,
        "dtype": sharding.dtype,
        "head": _head_of(sharding),
        "files": rank_files(sharding),
    }


def _head_of(sharding: Sharding) -> Head:
    is_score = any(placement.tensor == VALUE_HEAD for _, _, placement in sharding.placements())
    return "value" if is_score else "vocabulary"


@dataclass(frozen=True, kw_only=True)
class CutModel:
    """How the model in a folder of rank files is cut and stored."""

    layout: TrainLayout
    backend: TrainingBackend
    dtype: DType
    head: Head = "vocabulary"


def read_layout(folder: str) -> CutModel:
    """Read the layout.json of a folder of rank files.

    Raises:
        ModelError: layout.json is missing, unreadable or of another version.
    """
    path = Path(folder) / LAYOUT_FILE
    try:
        values = json.loads(read_regular_text(path))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    values = values if isinstance(values, dict) else {}
    known, dtype, chunks = get_args(DType), values.get("dtype"), values.get("layers_per_chunk")
    heads, head = get_args(Head), values.get("head", "vocabulary")
    for key, is_met, need in (
        ("version", values.get("version") == _VERSION, _VERSION),
        ("dtype", dtype in known, f"one of {', '.join(known)}"),
        ("head", head in heads, f"one of {', '.join(heads)}"),
        (
            "layers_per_chunk",
            chunks is None or _are_counts(chunks),
            ("null or a list of numbers of layers"),
        ),
    ):
        if not is_met:
            raise ModelError(f"{path}: {key}={values.get(key)!r} must be {need}")
    try:
        text = str(values.get("layout"))
        layout = parse_training(text)
    except ConfigError as error:
        raise ModelError(f"{path}: layout={error}") from error
    return CutModel(
        layout=replace(layout, layers_per_chunk=chunks and tuple(chunks)),
        backend=training_backend_of(text),
        dtype=cast("DType", dtype),
        head=head,
    )


def open_rank_files(
    folder: str, sharding: Sharding, stack: ExitStack, *, framework: Framework
) -> Mapping[str, Any]:
    """Open the files of all ranks, which the stack closes; returns the file of each shard.

    Raises:
        ModelError: A file is missing or unreadable, or its tensors differ from its rank's.
    """
    names = rank_files(sharding)
    files: dict[str, Any] = {}
    for rank in writing_ranks(sharding):
        path = Path(folder) / names[rank]
        if not path.is_file():
            raise ModelError(f"{path} is missing; {LAYOUT_FILE} requires it")
        file = stack.enter_context(open_file(path, framework))
        wanted = {name: entry.shape for name, entry in sharding.table(rank).items()}
        check_shapes(str(path), shapes_in(dict.fromkeys(file.keys(), file)), wanted)
        files = dict.fromkeys(sharding.held_by[rank], file) | files
    return files


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and value > 0 for value in values
    )
