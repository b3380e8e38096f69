"""A model from one folder of weight files into another, by the sharding tables, without ranks.

Either folder may be Hugging Face's or hold rank files. Each target tensor is made from the slices
that lie in it and goes to its file at once, so host memory holds one target tensor and one slice.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from mindrl.checkpoint.export import ExportedModel
from mindrl.checkpoint.filed_weights import FolderWeights, RankWeights, ReadBox, fill
from mindrl.checkpoint.new_folder import NewFolder
from mindrl.checkpoint.rank_files import (
    LAYOUT_FILE,
    dtype_of,
    layout_text,
    rank_files,
    table_bytes,
    writing_ranks,
)
from mindrl.checkpoint.tensor_file import TORCH_TYPES, TensorFile
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import DType, Side, training_side, whole_side
from mindrl.models.description import ModelDescription
from mindrl.models.placement import ShardingTable

Advance = Callable[[int], object]
"""Called with the bytes that were written since."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What is to be converted into what."""

    model: ModelDescription
    source: str
    source_side: Side | None
    """Of the rank files; None reads a Hugging Face folder."""
    target: Path
    layout: TrainLayout | None
    """Of the rank files; None writes a Hugging Face folder."""
    dtype: DType
    shard_bytes: int
    """Most bytes of a file of a Hugging Face folder."""

    @cached_property
    def target_side(self) -> Side:
        """Return who holds what in the target, where a Hugging Face folder is one rank."""
        if self.layout is None:
            return whole_side(self.model, world_size=1, holders=[0], dtype=self.dtype)
        return training_side(self.model, self.layout, dtype=self.dtype)

    @cached_property
    def total_bytes(self) -> int:
        """Count what will be written."""
        side = self.target_side
        return sum(table_bytes(side.table(rank), self.dtype) for rank in writing_ranks(side))


def convert(conversion: Conversion, advance: Advance) -> None:
    """Write the target; it appears whole, or not at all.

    Raises:
        ModelError: A source file is missing or unreadable.
        OutputError: The target cannot be written.
    """
    with ExitStack() as stack:
        source: FolderWeights | RankWeights
        if conversion.source_side is None:
            source = FolderWeights(conversion.source, stack)
        else:
            source = RankWeights(conversion.source, conversion.source_side, stack)
        if conversion.layout is None:
            _write_model(conversion, source.read, advance)
        else:
            _write_rank_files(conversion, conversion.layout, source.read, advance)


def _write_model(conversion: Conversion, read: ReadBox, advance: Advance) -> None:
    table = conversion.target_side.table(0)
    with ExportedModel(
        conversion.source,
        conversion.target,
        table,
        dtype=conversion.dtype,
        shard_bytes=conversion.shard_bytes,
    ) as sink:
        for name, entry in table.items():
            local = sink.open(name)
            fill(local, entry, read)
            sink.close(name)
            advance(local.nbytes)


def _write_rank_files(
    conversion: Conversion, layout: TrainLayout, read: ReadBox, advance: Advance
) -> None:
    side = conversion.target_side
    names = rank_files(side)
    folder = NewFolder(conversion.source, conversion.target, conversion.dtype)
    folder.begin()
    try:
        for rank in writing_ranks(side):
            _write_rank_file(
                folder.building / names[rank], side.table(rank), side.dtype, read, advance
            )
        text = layout_text(layout, side)
        (folder.building / LAYOUT_FILE).write_text(text, encoding="utf-8")
        folder.complete()
    except OSError as error:
        raise folder.failure(error) from error
    finally:
        folder.discard()


def _write_rank_file(
    path: Path, table: ShardingTable, dtype: DType, read: ReadBox, advance: Advance
) -> None:
    kinds = {name: (dtype_of(entry, dtype), entry.shape) for name, entry in table.items()}
    file = TensorFile(path, kinds)
    for name, entry in table.items():
        local = torch.empty(entry.shape, dtype=TORCH_TYPES[kinds[name][0]])
        fill(local, entry, read)
        file.write(name, local)
        advance(local.nbytes)
