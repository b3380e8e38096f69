"""A Hugging Face folder, written while its tensors arrive."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from mindrl.checkpoint.files import INDEX_FILE
from mindrl.checkpoint.new_folder import NewFolder
from mindrl.checkpoint.tensor_file import TORCH_TYPES, TensorFile
from mindrl.models.decoder import (
    ELEMENT_BYTES,
    VALUE_HEAD,
    DType,
    Head,
)
from mindrl.models.placement import Shape, ShardingTable
from mindrl.models.sharding import dtype_of, table_bytes

SHARD_BYTES = 5 << 30
_Kinds = dict[str, tuple[DType, Shape]]


class ExportedModel:
    """Takes whole logical tensors and writes safetensors, config, tokenizer, chat template.

    A context: the folder appears whole when it is left, or not at all; an older one is replaced.
    A tensor goes to its place in its file as soon as it is complete, so host memory holds only
    those that are being filled; which tensors share a file does not depend on who comes first.
    """

    def __init__(
        self,
        source: str,
        target: Path,
        table: ShardingTable,
        *,
        dtype: DType,
        shard_bytes: int = SHARD_BYTES,
        record: Mapping[str, object] | None = None,
    ) -> None:
        """Name what is to be written.

        Args:
            source: The folder that the model came from; its config and tokenizer are carried over.
            target: The new folder.
            table: The logical tensors; empty on a rank that writes nothing.
            dtype: Of all tensors but those that are always float32.
            shard_bytes: Most bytes of the tensors of a file; a larger tensor has one of its own.
            record: What else is to be known of the model, for a file of the folder; None: nothing.
        """
        head: Head = "value" if VALUE_HEAD in table else "vocabulary"
        self.folder = NewFolder(source, target, dtype, head)
        self.kinds = {name: (dtype_of(entry, dtype), entry.shape) for name, entry in table.items()}
        self.total_bytes = table_bytes(table, dtype)
        self.shard_bytes = shard_bytes
        self.record = record
        self.files: dict[str, TensorFile] = {}
        self.filling: dict[str, Tensor] = {}
        self.missing = set(table)

    def __enter__(self) -> Self:
        """Make a folder beside the target, with files that lack nothing but their tensors.

        Raises:
            OutputError: The folder cannot be made.
        """
        if self.kinds:
            self.folder.begin()
            try:
                self._begin_files()
            except OSError as error:
                self.folder.discard()
                raise self.folder.failure(error) from error
        return self

    def open(self, name: str) -> Tensor:
        """Return the host memory that takes a tensor."""
        if name not in self.filling:
            dtype, shape = self.kinds[name]
            self.filling[name] = torch.empty(shape, dtype=TORCH_TYPES[dtype])
        return self.filling[name]

    def close(self, name: str) -> None:
        """Take a tensor as complete.

        Raises:
            OutputError: The file cannot be written.
        """
        try:
            self.files[name].write(name, self.filling.pop(name))
        except OSError as error:
            raise self.folder.failure(error) from error
        self.missing.remove(name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the folder in its place, or remove what there is of it after an error."""
        if not self.kinds:
            return
        try:
            if error is None:
                assert not self.missing, f"{len(self.missing)} tensors never came"
                self.folder.complete(self.record)
        except OSError as failed:
            raise self.folder.failure(failed) from failed
        finally:
            self.folder.discard()

    def _begin_files(self) -> None:
        """Name the files as transformers does, with an index where there are several."""
        groups = list(_grouped(self.kinds, self.shard_bytes))
        count = len(groups)
        index: dict[str, str] = {}
        for number, kinds in enumerate(groups, start=1):
            name = f"model-{number:05}-of-{count:05}.safetensors"
            path = self.folder.building / (name if count > 1 else "model.safetensors")
            self.files |= dict.fromkeys(kinds, TensorFile(path, kinds))
            index |= dict.fromkeys(kinds, name)
        if count > 1:
            values = {"metadata": {"total_size": self.total_bytes}, "weight_map": index}
            text = json.dumps(values, indent=2, sort_keys=True) + "\n"
            (self.folder.building / INDEX_FILE).write_text(text, encoding="utf-8")


def _grouped(kinds: _Kinds, shard_bytes: int) -> Iterator[_Kinds]:
    """Deal tensors to files in their order."""
    group: _Kinds = {}
    group_bytes = 0
    for name, (dtype, shape) in kinds.items():
        size = math.prod(shape) * ELEMENT_BYTES[dtype]
        if group and group_bytes + size > shard_bytes:
            yield group
            group, group_bytes = {}, 0
        group[name] = dtype, shape
        group_bytes += size
    yield group
