"""A model from one folder of weight files into another, by the sharding tables, without ranks.

Either folder may be Hugging Face's or hold rank files. Each target tensor is made from the slices
that lie in it and goes to its file at once, so host memory holds one target tensor and one slice.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mindrl.checkpoint.export import exported_model
from mindrl.checkpoint.new_folder import new_folder, writing
from mindrl.checkpoint.rank_files import LAYOUT_FILE, layout_text, rank_files, writing_ranks
from mindrl.checkpoint.readers import FolderReader, RankFileReader, ReadBox, fill
from mindrl.checkpoint.tensor_file import TensorFile
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import DType
from mindrl.models.sharding import Sharding, table_bytes

Advance = Callable[[int], object]
"""Called with the bytes that were written since."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What is to be converted into what."""

    source: str
    source_sharding: Sharding | None
    """Of the rank files; None reads a Hugging Face folder."""
    target: Path
    target_sharding: Sharding
    """Who holds what in the target; a Hugging Face folder is one rank with everything."""
    layout: TrainLayout | None
    """Of the rank files; None writes a Hugging Face folder."""
    shard_bytes: int
    """Most bytes of a file of a Hugging Face folder."""

    @property
    def dtype(self) -> DType:
        """Return the type of the target."""
        return self.target_sharding.dtype

    @cached_property
    def total_bytes(self) -> int:
        """Count what will be written."""
        tables = map(self.target_sharding.table, writing_ranks(self.target_sharding))
        return sum(table_bytes(table, self.dtype) for table in tables)


def convert(conversion: Conversion, advance: Advance) -> None:
    """Write the target; it appears whole, or not at all.

    Raises:
        ModelError: A source file is missing or unreadable.
        OutputError: The target cannot be written.
    """
    with ExitStack() as stack:
        source: FolderReader | RankFileReader
        if conversion.source_sharding is None:
            source = FolderReader(conversion.source, stack)
        else:
            source = RankFileReader(conversion.source, conversion.source_sharding, stack)
        if conversion.layout is None:
            _write_model(conversion, source.read, advance)
        else:
            _write_rank_files(conversion, conversion.layout, source.read, advance)


def _write_model(conversion: Conversion, read: ReadBox, advance: Advance) -> None:
    table = conversion.target_sharding.table(0)
    with exported_model(
        conversion.source,
        conversion.target,
        table,
        dtype=conversion.dtype,
        shard_bytes=conversion.shard_bytes,
    ) as model:
        for name, entry in table.items():
            local = model.open(name)
            fill(local, entry, read)
            model.close(name)
            advance(local.nbytes)


def _write_rank_files(
    conversion: Conversion, layout: TrainLayout, read: ReadBox, advance: Advance
) -> None:
    sharding, target = conversion.target_sharding, conversion.target
    names = rank_files(sharding)
    with new_folder(conversion.source, target, dtype=sharding.dtype) as folder, writing(target):
        for rank in writing_ranks(sharding):
            table = sharding.table(rank)
            file = TensorFile(folder / names[rank], table, sharding.dtype)
            for name, entry in table.items():
                local = file.empty(name)
                fill(local, entry, read)
                file.write(name, local)
                advance(local.nbytes)
        (folder / LAYOUT_FILE).write_text(layout_text(layout, sharding), encoding="utf-8")
