"""Folders of Qwen3.5 with a vision tower: mindrl reads and trains their decoder, a model of text.

Their config.json nests the decoder's sizes in `text_config`, and their files begin the names of its
tensors with `model.language_model.`. The tower and the layers that draft tokens (`mtp.`) are not
loaded. Imports no torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class TextPart(NamedTuple):
    """The decoder of a family with a tower."""

    family: str
    """The `model_type` of the decoder alone."""
    architecture: str
    """Its class in transformers, which the rollout engine has too."""


TEXT_PARTS: Mapping[str, TextPart] = {
    "qwen3_5": TextPart("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": TextPart("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
}
"""Families with a tower whose decoder is trained alone, by `model_type`."""
NESTED_DECODER, FLAT_DECODER = "model.language_model.", "model."
"""Prefixes of the decoder's tensors in such a folder, and in the folder of a model of text."""


def is_nested(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to such a folder."""
    return values.get("model_type") in TEXT_PARTS and isinstance(values.get("text_config"), dict)


def text_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the decoder alone; unchanged for another family."""
    if not is_nested(values):
        return dict(values)
    part, nested = TEXT_PARTS[values["model_type"]], values["text_config"]
    classes = values.get("architectures")
    if isinstance(classes, list):
        classes = [part.architecture if "ForConditional" in str(each) else each for each in classes]
    found = {name: each for name, each in values.items() if name not in _OF_TOWERS}
    # transformers ties the head of the whole model by the key at the top.
    tied = values.get("tie_word_embeddings", nested.get("tie_word_embeddings", False))
    own = {"model_type": part.family, "architectures": classes, "tie_word_embeddings": tied}
    return {**found, **nested, **own}


_OF_TOWERS = ("text_config", "vision_config", "image_token_id", "video_token_id")
