"""A model folder in the making: it appears whole, or not at all."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrl.errors import OutputError
from mindrl.models.decoder import DType, Head

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


class NewFolder:
    """A folder of weight files, with the config and tokenizer of the folder it came from."""

    def __init__(self, source: str, target: Path, dtype: DType, head: Head = "vocabulary") -> None:
        """Name what is to be made.

        Args:
            source: The folder that config and tokenizer are carried over from.
            target: The new folder.
            dtype: Of the weights, for config.json.
            head: Of the model, for config.json.
        """
        self.source = Path(source)
        self.target = target
        self.dtype = dtype
        self.head = head
        self.building = _beside(target)

    def begin(self) -> None:
        """Make an empty folder beside the target.

        Raises:
            OutputError: The folder cannot be made.
        """
        try:
            shutil.rmtree(self.building, ignore_errors=True)
            self.building.mkdir(parents=True)
        except OSError as error:
            raise self.failure(error) from error

    def discard(self) -> None:
        """Remove what there is of it."""
        shutil.rmtree(self.building, ignore_errors=True)

    def complete(self, record: Mapping[str, object] | None = None) -> None:
        """Add config and tokenizer and put the folder in its place; an older one is replaced.

        Args:
            record: For `EXPORT_FILE`; None leaves it out.

        Raises:
            OSError: A file cannot be read or written.
        """
        values = json.loads((self.source / "config.json").read_text(encoding="utf-8"))
        # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
        values["torch_dtype" if "torch_dtype" in values else "dtype"] = self.dtype
        if self.head == "value":
            values |= _one_label(values)
        text = json.dumps(values, indent=2) + "\n"
        (self.building / "config.json").write_text(text, encoding="utf-8")
        for name in _CARRIED_FILES:
            if (self.source / name).is_file():
                shutil.copyfile(self.source / name, self.building / name)
        if record is not None:
            text = json.dumps(record, indent=2) + "\n"
            (self.building / EXPORT_FILE).write_text(text, encoding="utf-8")
        _replace(self.building, self.target)

    def failure(self, error: Exception) -> OutputError:
        """Return an error in the words of the user."""
        return OutputError(f"the model could not be exported to {self.target}: {error}")


def keep_folder(folder: Path, target: Path) -> None:
    """Keep a folder's files under a second name, whatever replaces the first; costs no room.

    Only a disk without hard links gets copies. An older target is replaced.

    Raises:
        OutputError: The target cannot be written.
    """
    building = _beside(target)
    try:
        shutil.rmtree(building, ignore_errors=True)
        shutil.copytree(folder, building, copy_function=_link_or_copy)
        _replace(building, target)
    except OSError as error:
        raise OutputError(f"{folder} could not be kept as {target}: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.incomplete")


def _replace(building: Path, target: Path) -> None:
    retired = target.with_name(f".{target.name}.replaced")
    if target.exists():
        # A killed export may have left one, which would block the renaming.
        shutil.rmtree(retired, ignore_errors=True)
        target.rename(retired)
    building.rename(target)
    shutil.rmtree(retired, ignore_errors=True)


def _one_label(values: Mapping[str, Any]) -> dict[str, Any]:
    """Say in transformers' words that each token has one number, a product without a bias."""
    names = values.get("architectures") or []
    return {
        "architectures": [re.sub(r"For\w+$", "ForTokenClassification", name) for name in names],
        "id2label": {"0": "value"},
        "label2id": {"value": 0},
        "token_classification_bias": False,
    }
