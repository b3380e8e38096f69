"""Adapter folders in PEFT's format: a config and one file of factors."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mindrl.checkpoint.files import Framework, check_shapes, open_file, shapes_in
from mindrl.errors import ModelError
from mindrl.models.adapters import LowRank
from mindrl.models.placement import Shape
from mindrl.models.vision import TOWER_MODULES
from mindrl.observability.regular_files import read_regular_text

ADAPTER_FOLDER = "adapter"
"""Subfolder of an exported model; the model's weights already include the adapters."""
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_ASKER = "actor_config.lora"
_OTHER_KINDS = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")
"""Keys of PEFT that change how factors are combined or stored; not supported."""


def open_adapters(
    folder: str, shapes: Mapping[str, Shape], stack: ExitStack, *, framework: Framework
) -> Any:
    """Open a file with exactly these factors; the stack closes it.

    Raises:
        ModelError: It is missing or unreadable, or has other factors.
    """
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    file = stack.enter_context(open_file(path, framework))
    names = [*file.keys()]
    check_shapes(str(path), shapes_in(dict.fromkeys(names, file)), shapes, _ASKER)
    for name in sorted(set(names) - shapes.keys()):
        raise ModelError(f"{path}: tensor {name} belongs to no layer in {_ASKER}")
    return file


def check_adapters(folder: str, low_rank: LowRank, shapes: Mapping[str, Shape]) -> None:
    """Compare an adapter folder with the configured adapters. Reads no factor.

    Raises:
        ModelError: A file is missing or unreadable, or belongs to other adapters.
    """
    path = Path(folder) / CONFIG_FILE
    try:
        values = json.loads(read_regular_text(path))
        rank, alpha = values["r"], values["lora_alpha"]
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; {_no_folder(path.parent)}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    asked = {"r": low_rank.r, "lora_alpha": low_rank.alpha}
    for (name, wanted), found in zip(asked.items(), (rank, alpha), strict=True):
        if found != wanted:
            key = name.removeprefix("lora_")
            raise ModelError(
                f"{path} has {name}={found}, but {_ASKER}.{key}={wanted:g}; set both to the "
                "same value"
            )
    for name in _OTHER_KINDS:
        if values.get(name):
            raise ModelError(f"{path}: {name}={values[name]} is not supported")
    with ExitStack() as stack:
        open_adapters(folder, shapes, stack, framework="np")


def _no_folder(folder: Path) -> str:
    """Return the error text for a folder without an adapter config."""
    within = folder / ADAPTER_FOLDER
    if (within / CONFIG_FILE).is_file():
        return f"this is a model folder; its adapter is in {within}"
    return "the folder has no PEFT adapter"


def adapter_config(low_rank: LowRank, model: str, *, has_tower: bool = False) -> dict[str, Any]:
    """Return the content of adapter_config.json for adapters on a model's text part."""
    # Some layers of a vision tower have the names of a decoder's.
    excluded = {"exclude_modules": TOWER_MODULES} if has_tower else {}
    return {
        **excluded,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": low_rank.r,
        "lora_alpha": low_rank.alpha,
        "lora_dropout": low_rank.dropout,
        "target_modules": sorted(low_rank.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }
