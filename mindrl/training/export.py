"""A Hugging Face folder, written while its tensors arrive."""

import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mindrl.errors import OutputError
from mindrl.models.decoder import DType, always_float32
from mindrl.models.placement import ShardingTable

_CARRIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_SHARD_BYTES = 5 << 30
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ExportedModel:
    """Takes whole logical tensors and writes safetensors, config, tokenizer, chat template.

    A context: the folder appears whole when it is left, or not at all; an older one is replaced.
    No more than one file's tensors are held in host memory, beside those that are being filled.
    """

    def __init__(
        self,
        source: str,
        target: Path,
        table: ShardingTable,
        *,
        dtype: DType,
        shard_bytes: int = _SHARD_BYTES,
    ) -> None:
        """Name what is to be written.

        Args:
            source: The folder that the model came from; its config and tokenizer are carried over.
            target: The new folder.
            table: The logical tensors; empty on a rank that writes nothing.
            dtype: Of all tensors but those that are always float32.
            shard_bytes: Size from which a file is written and the next one begun.
        """
        self.source = Path(source)
        self.target = target
        self.table = table
        self.dtype = dtype
        self.shard_bytes = shard_bytes
        self.building = target.with_name(f".{target.name}.incomplete")
        self.filling: dict[str, Tensor] = {}
        self.complete: dict[str, Tensor] = {}
        self.files: list[list[str]] = []
        self.total_bytes = 0

    def __enter__(self) -> Self:
        """Make an empty folder beside the target.

        Raises:
            OutputError: The folder cannot be made.
        """
        if self.table:
            try:
                shutil.rmtree(self.building, ignore_errors=True)
                self.building.mkdir(parents=True)
            except OSError as error:
                raise self._failure(error) from error
        return self

    def open(self, name: str) -> Tensor:
        """Return the host memory that takes a tensor."""
        if name not in self.filling:
            dtype = torch.float32 if always_float32(name) else _TYPES[self.dtype]
            self.filling[name] = torch.empty(self.table[name].shape, dtype=dtype)
        return self.filling[name]

    def close(self, name: str) -> None:
        """Take a tensor as complete; enough of them become a file.

        Raises:
            OutputError: The file cannot be written.
        """
        self.complete[name] = self.filling.pop(name)
        if sum(tensor.nbytes for tensor in self.complete.values()) >= self.shard_bytes:
            self._write_file()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the folder in its place, or remove what there is of it after an error."""
        if not self.table:
            return
        if error is not None:
            shutil.rmtree(self.building, ignore_errors=True)
            return
        self._finish()

    def _write_file(self) -> None:
        try:
            path = self.building / f"{len(self.files)}.safetensors"
            save_file(self.complete, path, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            raise self._failure(error) from error
        self.files.append(sorted(self.complete))
        self.total_bytes += sum(tensor.nbytes for tensor in self.complete.values())
        self.complete = {}

    def _finish(self) -> None:
        missing = self.table.keys() - self.complete.keys() - {n for f in self.files for n in f}
        assert not missing, f"{len(missing)} tensors never came: {sorted(missing)[:5]}"
        if self.complete:
            self._write_file()
        try:
            self._write_config()
            self._name_files()
            for name in _CARRIED_FILES:
                if (self.source / name).is_file():
                    shutil.copyfile(self.source / name, self.building / name)
            self._replace()
        except OSError as error:
            raise self._failure(error) from error

    def _write_config(self) -> None:
        values = json.loads((self.source / "config.json").read_text(encoding="utf-8"))
        # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
        values["torch_dtype" if "torch_dtype" in values else "dtype"] = self.dtype
        text = json.dumps(values, indent=2) + "\n"
        (self.building / "config.json").write_text(text, encoding="utf-8")

    def _name_files(self) -> None:
        """Name the files as transformers does, with an index where there are several."""
        count = len(self.files)
        # safetensors writes for the owner alone; the other files follow the user's umask.
        mode = (self.building / "config.json").stat().st_mode
        index: dict[str, str] = {}
        for number, names in enumerate(self.files):
            name = f"model-{number + 1:05}-of-{count:05}.safetensors"
            path = self.building / (name if count > 1 else "model.safetensors")
            (self.building / f"{number}.safetensors").rename(path)
            path.chmod(mode)
            index |= dict.fromkeys(names, name)
        if count > 1:
            values = {"metadata": {"total_size": self.total_bytes}, "weight_map": index}
            text = json.dumps(values, indent=2, sort_keys=True) + "\n"
            (self.building / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    def _replace(self) -> None:
        retired = self.target.with_name(f".{self.target.name}.replaced")
        if self.target.exists():
            # A killed export may have left one, which would block the renaming.
            shutil.rmtree(retired, ignore_errors=True)
            self.target.rename(retired)
        self.building.rename(self.target)
        shutil.rmtree(retired, ignore_errors=True)

    def _failure(self, error: Exception) -> OutputError:
        return OutputError(f"the model could not be exported to {self.target}: {error}")
