"""A Hugging Face folder, written while its tensors arrive."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from mindrl.checkpoint.files import INDEX_FILE
from mindrl.checkpoint.new_folder import new_folder, writing
from mindrl.checkpoint.tensor_file import TensorFile
from mindrl.models.decoder import VALUE_HEAD, DType, Head
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import table_bytes

SHARD_BYTES = 5 << 30


class ExportedModel:
    """Takes whole logical tensors, and puts each in its file as soon as it is complete.

    So host memory holds only those that are being filled; which tensors share a file does not
    depend on who comes first.
    """

    def __init__(self, target: Path, files: Mapping[str, TensorFile]) -> None:
        """Name the file that takes each tensor."""
        self.target = target
        self.files = files
        self.filling: dict[str, Tensor] = {}
        self.missing = set(files)

    def open(self, name: str) -> Tensor:
        """Return the host memory that takes a tensor."""
        if name not in self.filling:
            self.filling[name] = self.files[name].empty(name)
        return self.filling[name]

    def close(self, name: str) -> None:
        """Take a tensor as complete.

        Raises:
            OutputError: The file cannot be written.
        """
        with writing(self.target):
            self.files[name].write(name, self.filling.pop(name))
        self.missing.remove(name)


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
    """Write a folder of safetensors, config, tokenizer and chat template.

    It appears whole when the context is left, or not at all; an older one is replaced.

    Args:
        source: The folder that the model came from; its config and tokenizer are carried over.
        target: The new folder.
        table: The logical tensors; empty on a rank that writes nothing.
        dtype: Of all tensors but those that are always float32.
        shard_bytes: Most bytes of the tensors of a file; a larger tensor has one of its own.
        record: What else is to be known of the model, for a file of the folder; None: nothing.

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
        model = ExportedModel(target, files)
        yield model
        assert not model.missing, f"{len(model.missing)} tensors never came"


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
        index = {name: file.path.name for name, file in files.items()}
        values = {"metadata": {"total_size": table_bytes(table, dtype)}, "weight_map": index}
        text = json.dumps(values, indent=2, sort_keys=True) + "\n"
        (folder / INDEX_FILE).write_text(text, encoding="utf-8")
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
