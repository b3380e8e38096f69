"""A model folder in the making: it appears whole, or not at all."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def new_folder(
    source: str,
    target: Path,
    *,
    dtype: DType,
    head: Head = "vocabulary",
    record: Mapping[str, object] | None = None,
) -> Iterator[Path]:
    """Make a folder beside the target, for weights; afterwards it takes the target's place.

    With the config and the tokenizer of `source`, the folder that the model came from, and with
    `record` in `EXPORT_FILE`. An older target is replaced; after an error there is nothing new.

    Raises:
        OutputError: The folder cannot be made.
    """
    with _beside(target) as building:
        with writing(target):
            building.mkdir(parents=True)
        yield building
        with writing(target):
            _carry_over(Path(source), building, dtype, head)
            if record is not None:
                _write_json(building / EXPORT_FILE, record)
            _take_place(building, target)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say in the words of the user what keeps a model from being written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the model could not be exported to {target}: {error}") from error


def keep_folder(folder: Path, target: Path) -> None:
    """Keep a folder's files under a second name, whatever replaces the first; costs no room.

    Only a disk without hard links gets copies. An older target is replaced.

    Raises:
        OutputError: The target cannot be written.
    """
    try:
        with _beside(target) as building:
            shutil.copytree(folder, building, copy_function=_link_or_copy)
            _take_place(building, target)
    except OSError as error:
        raise OutputError(f"{folder} could not be kept as {target}: {error}") from error


def _carry_over(source: Path, building: Path, dtype: DType, head: Head) -> None:
    values = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    values["torch_dtype" if "torch_dtype" in values else "dtype"] = dtype
    if head == "value":
        # In transformers' words: each token has one number, a product without a bias.
        names = values.get("architectures") or []
        values |= {
            "architectures": [re.sub(r"For\w+$", "ForTokenClassification", name) for name in names],
            "id2label": {"0": "value"},
            "label2id": {"value": 0},
            "token_classification_bias": False,
        }
    _write_json(building / "config.json", values)
    for name in _CARRIED_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, building / name)


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Name a folder beside the target, which is not there before, nor afterwards."""
    building = target.with_name(f".{target.name}.incomplete")
    shutil.rmtree(building, ignore_errors=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _take_place(building: Path, target: Path) -> None:
    retired = target.with_name(f".{target.name}.replaced")
    if target.exists():
        # A killed export may have left one, which would block the renaming.
        shutil.rmtree(retired, ignore_errors=True)
        target.rename(retired)
    building.rename(target)
    shutil.rmtree(retired, ignore_errors=True)
