"""The config.json of a model folder. Imports no torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrl.errors import ModelError
from mindrl.models.nested_text import TEXT_PARTS, is_nested, text_part
from mindrl.observability.regular_files import read_regular_text

# Without one of these files some families return an empty vocabulary instead of an error.
VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")
"""Patterns of the files of a tokenizer's vocabulary."""


def read_config(folder: str) -> tuple[Path, dict[str, Any]]:
    """Read the config.json of a model folder, or one by itself; returns its path too.

    For a folder in `nested_text`, returns its decoder's config.

    Raises:
        ModelError: The folder or the file is missing or unreadable.
    """
    path, values = read_whole_config(folder)
    return path, text_part(values)


def read_whole_config(folder: str) -> tuple[Path, dict[str, Any]]:
    """Read a config.json unchanged, even if nested: see `read_config`."""
    path = Path(folder)
    path = path if path.suffix == ".json" else path / "config.json"
    if path.parent.is_file():
        raise ModelError(
            f"model folder {path.parent} is a file; use the folder with config.json, "
            f"{path.parent.parent}"
        )
    if not path.parent.is_dir():
        raise ModelError(f"model folder {path.parent} does not exist")
    try:
        values = json.loads(read_regular_text(path))
    except FileNotFoundError:
        raise ModelError(f"model folder {path.parent} {_without(path)}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must contain a JSON object")
    return path, values


def decoder_class(folder: str) -> str | None:
    """Return the class of a decoder that its folder nests; None for another folder.

    Also None if the folder has no config.json, which other checks report.
    """
    if not (Path(folder) / "config.json").is_file():
        return None
    values = read_whole_config(folder)[1]
    return TEXT_PARTS[values["model_type"]].architecture if is_nested(values) else None


def text_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config.json about its decoder, with the family and class of the whole.

    Families with more than a decoder nest it in `text_config`; some of their folders have its
    sizes at the top.
    """
    nested = values.get("text_config")
    if not isinstance(nested, dict):
        return dict(values)
    whole = {name: values[name] for name in _OF_THE_WHOLE if values.get(name) is not None}
    return {**values, **nested, **whole}


_OF_THE_WHOLE = ("model_type", "architectures", "tie_word_embeddings")
"""Keys that are read at the top."""


def _without(path: Path) -> str:
    """Return the error text for a folder without a config.json."""
    adapter = path.parent / "adapter_config.json"
    if path.name != "config.json" or not adapter.is_file():
        return f"has no {path.name}"
    try:
        values = json.loads(read_regular_text(adapter))
        base = values["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError):
        values, base = {}, None
    kind = (("r", values.get("r")), ("alpha", values.get("lora_alpha")))
    given = "".join(f" actor_config.lora.{name}={value}" for name, value in kind if value)
    return (
        f"contains an adapter of {base or 'its base model'}, not a model: continue "
        f"training it with actor_config.load={base or 'BASE_MODEL'} "
        f"actor_config.lora.load={path.parent}{given}, or merge it with peft, "
        "AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload()"
        ".save_pretrained(new_folder), add the base model's tokenizer, and use the new folder"
    )
