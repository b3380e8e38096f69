"""Vision-language families: what their config.json and their files hold besides a decoder.

Imports no torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrl.errors import ModelError
from mindrl.models.config_file import read_config
from mindrl.models.other_family import VisionPart
from mindrl.models.vision_shapes import tower_sizes

VISION_FAMILIES = ("qwen2_5_vl", "qwen3_vl")
_TOWER, _DECODER = "model.visual.", "model.language_model."
"""Prefixes in the modules of transformers, and in the files of newer folders."""
TOWER_MODULES = f"{re.escape(_TOWER)}.*"
"""Pattern of a tower's modules in transformers."""
_OLD_TOWER, _OLD_DECODER = "visual.", "model."
"""Prefixes in the files of older folders."""


def has_tower(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to a model with a vision tower."""
    return isinstance(values.get("vision_config"), dict)


def vision_part(values: Mapping[str, Any], tensors: Iterable[str]) -> VisionPart | None:
    """Return the tower of a model by its config.json and the names of its tensors."""
    if not has_tower(values):
        return None
    is_old = any(name.startswith(_OLD_TOWER) for name in tensors)
    return VisionPart(
        image_token=values["image_token_id"],
        tower=_OLD_TOWER if is_old else _TOWER,
        decoder=_OLD_DECODER if is_old else _DECODER,
        sizes=tower_sizes(values),
    )


def file_name(part: VisionPart, module: str) -> str:
    """Return the name in the files of a parameter of transformers' modules."""
    if module.startswith(_TOWER):
        return part.tower + module.removeprefix(_TOWER)
    if module.startswith(_DECODER):
        return part.decoder + module.removeprefix(_DECODER)
    return module


def module_name(part: VisionPart, name: str) -> str:
    """Return the name in transformers' modules of a tensor of the files."""
    if name.startswith(part.tower):
        return _TOWER + name.removeprefix(part.tower)
    if name.startswith(part.decoder):
        return _DECODER + name.removeprefix(part.decoder)
    return name


def unsupported_vision(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a model with a vision tower has and mindrl lacks."""
    if not has_tower(values):
        return
    family = values.get("model_type")
    if family not in VISION_FAMILIES:
        near = " and ".join(VISION_FAMILIES)
        yield f"model_type={family!r} with a vision_config is not supported; only {near}"
    elif type(values.get("image_token_id")) is not int:
        yield f"image_token_id={values.get('image_token_id')!r} must be the id of a token"


def image_token(folder: str) -> int | None:
    """Return the token that stands for a part of a picture; None for a model of text.

    Also None if the folder has no config.json, which other checks report.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        return None
    try:
        values = read_config(folder)[1]
    except ModelError:
        return None
    token = values.get("image_token_id") if has_tower(values) else None
    return token if type(token) is int else None
