"""Convert a model between folders of weight files, by the sharding tables, without ranks.

Both folders may be in Hugging Face's format or hold rank files. Each target tensor is filled from
the slices in it and written at once, so host memory holds one target tensor and one slice.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mindrl.checkpoint.export import (
    ExportedModel,
    TensorFile,
    exported_model,
    new_folder,
    write_json,
    writing,
)
from mindrl.checkpoint.rank_files import LAYOUT_FILE, layout_record, rank_files, writing_ranks
from mindrl.checkpoint.readers import ReadBox, fill, folder_reader, rank_file_reader
from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.layouts.layout import TrainLayout
from mindrl.models.placement import ShardingTable
from mindrl.models.sharding import Sharding, table_bytes

Advance = Callable[[int], object]
"""Called with the bytes written since the last call."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Source and target of a conversion."""

    source: str
    source_sharding: Sharding | None
    """Sharding of rank files; None reads a Hugging Face folder."""
    target: Path
    target_sharding: Sharding
    """Sharding of the target; a Hugging Face folder is one rank with everything."""
    layout: TrainLayout | None
    """Layout of rank files; None writes a Hugging Face folder."""
    backend: TrainingBackend = TRAINING_BACKEND
    """Engine of that layout."""
    shard_bytes: int
    """Maximum bytes of a file in a Hugging Face folder."""

    @cached_property
    def total_bytes(self) -> int:
        """Bytes that will be written."""
        tables = map(self.target_sharding.table, writing_ranks(self.target_sharding))
        return sum(table_bytes(table, self.target_sharding.dtype) for table in tables)


def convert(conversion: Conversion, advance: Advance) -> None:
    """Write the target; it appears complete, or not at all.

    Raises:
        ModelError: A source file is missing or unreadable.
        OutputError: The target cannot be written.
    """
    target, sharding = conversion.target, conversion.target_sharding
    with ExitStack() as stack:
        if conversion.source_sharding is None:
            read = folder_reader(conversion.source, stack)
        else:
            read = rank_file_reader(conversion.source, conversion.source_sharding, stack)
        if conversion.layout is None:
            table, shard_bytes = sharding.table(0), conversion.shard_bytes
            model = stack.enter_context(
                exported_model(
                    conversion.source,
                    target,
                    table,
                    dtype=sharding.dtype,
                    shard_bytes=shard_bytes,
                    scores=None,
                )
            )
            _write(model, table, read, advance)
            return
        held = {placement.tensor for _, _, placement in sharding.placements()}
        folder = stack.enter_context(
            new_folder(conversion.source, target, dtype=sharding.dtype, held=held)
        )
        names = rank_files(sharding)
        for rank in writing_ranks(sharding):
            table = sharding.table(rank)
            with writing(target):
                file = TensorFile(folder / names[rank], table, sharding.dtype)
            _write(ExportedModel(target, dict.fromkeys(table, file)), table, read, advance)
        with writing(target):
            record = layout_record(conversion.layout, sharding, conversion.backend)
            write_json(folder / LAYOUT_FILE, record)


def _write(model: ExportedModel, table: ShardingTable, read: ReadBox, advance: Advance) -> None:
    for name, entry in table.items():
        local = model.open(name)
        fill(local, entry, read)
        model.close(name)
        advance(local.nbytes)
