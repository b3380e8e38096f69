"""Vision-language families: what their config.json and their files hold besides a decoder.

Imports no torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrl.errors import ModelError
from mindrl.models.config_file import read_config, text_values
from mindrl.models.other_family import VisionPart
from mindrl.models.rope import rope_theta, rope_values
from mindrl.models.vision_shapes import tower_sizes

VISION_FAMILIES: Mapping[str, str] = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
"""Families with a tower, and the family of text of their decoder."""
_TOWER, _DECODER = "model.visual.", "model.language_model."
"""Prefixes in the modules of transformers, and in the files of newer folders."""
TOWER_MODULES = f"{re.escape(_TOWER)}.*"
"""Pattern of a tower's modules in transformers."""
_OLD_TOWER, _OLD_DECODER = "visual.", "model."
"""Prefixes in the files of older folders, and in the modules of mindrl's own network."""
_SECTIONS: Mapping[str, tuple[int, int, int]] = {
    "qwen2_5_vl": (16, 24, 24),
    "qwen3_vl": (24, 20, 20),
}
"""transformers' sections if config.json has none."""
_NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_5_vl": {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "attention_bias": True},
    "qwen3_vl": {"rms_norm_eps": 1e-6, "rope_theta": 500_000.0, "qk_norm": True},
}
"""Values of a family that mindrl's own decoder needs; numbers are transformers' defaults."""


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
        sections=_sections(values),
        takes_turns=values["model_type"] == "qwen3_vl",
    )


def file_name(part: VisionPart, module: str) -> str:
    """Return the name in the files of a parameter of transformers' modules, or of mindrl's."""
    for tower, decoder in ((_TOWER, _DECODER), (_OLD_TOWER, _OLD_DECODER)):
        for prefix, of_files in ((tower, part.tower), (decoder, part.decoder)):
            if module.startswith(prefix):
                return of_files + module.removeprefix(prefix)
    return module


def module_name(part: VisionPart, name: str) -> str:
    """Return the name in transformers' modules of a tensor of the files."""
    if name.startswith(part.tower):
        return _TOWER + name.removeprefix(part.tower)
    if name.startswith(part.decoder):
        return _DECODER + name.removeprefix(part.decoder)
    return name


def unsupported_vision(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield features of a model with a vision tower that mindrl lacks."""
    if not has_tower(values):
        return
    family = values.get("model_type")
    if family not in VISION_FAMILIES:
        near = " and ".join(VISION_FAMILIES)
        yield f"model_type={family!r} with a vision_config is not supported; only {near}"
    elif type(values.get("image_token_id")) is not int:
        yield f"image_token_id={values.get('image_token_id')!r} must be the id of a token"


def unsupported_decoder(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield why mindrl's own decoder cannot turn queries and keys as the model needs."""
    sections, width = _sections(values), values.get("head_dim")
    width = width or values["hidden_size"] // values["num_attention_heads"]
    if 2 * sum(sections) != width:
        yield f"mrope_section={[*sections]} must have the sum head_dim / 2 = {width // 2}"


def decoder_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values besides sizes that mindrl's own decoder needs; empty for other families."""
    found = dict(_NUMBERS.get(str(values.get("model_type")), {})) if has_tower(values) else {}
    if not found:
        return found
    given = {"rms_norm_eps": values.get("rms_norm_eps"), "rope_theta": rope_theta(values)}
    return found | {name: value for name, value in given.items() if value is not None}


def decoder_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the decoder alone, as a folder of text has it."""
    text = text_values(values)
    return {**text, **decoder_numbers(text), "model_type": VISION_FAMILIES[text["model_type"]]}


def _sections(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the sections of rotary positions.

    Raises:
        ValueError: They are not three sizes.
    """
    found = rope_values(values).get("mrope_section", _SECTIONS[values["model_type"]])
    if len(found) != 3 or any(type(each) is not int or each < 0 for each in found):
        raise ValueError(f"mrope_section={found!r} must be three sizes")
    picture, row, column = found
    return picture, row, column


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
