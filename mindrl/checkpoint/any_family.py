"""Describe a model folder of any family. Imports no torch."""

from mindrl.checkpoint.files import tensor_shapes
from mindrl.errors import ModelError
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config, text_values
from mindrl.models.description import (
    ModelDescription,
    is_known,
    read_description,
    unsupported_text,
)
from mindrl.models.gated_delta import GATED_DELTA_FAMILIES, gated_delta_net
from mindrl.models.gated_delta_shapes import planned_shapes
from mindrl.models.vision import has_tower, unsupported_decoder
from mindrl.models.vision_shapes import planned_vision_shapes


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
    if not any(path.parent.glob("*.safetensors")):
        shapes = planned_shapes if gated_delta_net(values) else planned_vision_shapes
        if planned := shapes(values):
            return any_description(path, values, planned)
    return any_description(path, values, tensor_shapes(str(path.parent)))
