"""Describe a model folder of any family. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrl.checkpoint.files import tensor_shapes
from mindrl.errors import ModelError
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config, text_values
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import (
    ModelDescription,
    is_known,
    planned_text,
    read_description,
    unsupported_text,
)
from mindrl.models.gated_delta import GATED_DELTA_FAMILIES
from mindrl.models.nested_text import FLAT_DECODER, NESTED_DECODER
from mindrl.models.placement import Shape
from mindrl.models.vision import VISION_FAMILIES, decoder_values, has_tower, unsupported_decoder
from mindrl.models.vision_shapes import tower_shapes, tower_sizes


def read_seeing_description(folder: str, *, to_plan: bool = False) -> ModelDescription:
    """Read a model of a known family, or one with a vision tower and a decoder of mindrl.

    Raises:
        ModelError: As in `read_any_description`, and if mindrl's decoder lacks something.
    """
    path, values = read_config(folder)
    if not has_tower(values):
        return read_description(folder, to_plan=to_plan)
    model, text = read_any_description(folder, to_plan=to_plan), text_values(values)
    for lacking in () if to_plan else (*unsupported_text(text), *unsupported_decoder(text)):
        raise ModelError(f"{path}: {lacking} with archon; use actor_config.backend=fsdp:d2")
    return model


def read_any_description(folder: str, *, to_plan: bool = False) -> ModelDescription:
    """Read a model of a known family, or of any other: see `read_description`.

    Families with gated delta nets count as others: `fsdp` computes them by transformers' layers.
    Their tensors, and those of families with a vision tower, follow from config.json if there are
    no weight files.

    Raises:
        ModelError: As in `read_description`; for other families also if weight files are
            unreadable.
    """
    path, values = read_config(folder)
    if is_known(values) and values["model_type"] not in GATED_DELTA_FAMILIES:
        return read_description(folder, to_plan=to_plan)
    has_files = any(path.parent.glob("*.safetensors"))
    planned = {} if has_files else _planned_shapes(path, values)
    return any_description(path, values, planned or tensor_shapes(str(path.parent)))


def _planned_shapes(path: Path, values: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the tensors that follow from config.json; empty if it does not determine them."""
    family = values.get("model_type")
    if family in GATED_DELTA_FAMILIES:
        decoder = planned_text(path, values)
        return logical_shapes(decoder) if decoder.delta else {}
    if family not in VISION_FAMILIES or not has_tower(values):
        return {}
    try:
        tower = dict(tower_shapes(tower_sizes(values)))
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
    text = logical_shapes(planned_text(path, decoder_values(values)))
    return tower | {
        name.replace(FLAT_DECODER, NESTED_DECODER, 1): shape for name, shape in text.items()
    }
