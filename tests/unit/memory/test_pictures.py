"""What towers of transformers keep of pictures, next to what plans say of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from mindrl.config.archon import ArchonConfig
from mindrl.config.role import LearningConfig
from mindrl.memory.pictures import feature_bytes, tower_bytes
from mindrl.models.decoder import DType
from mindrl.models.other_family import TowerSizes
from mindrl.models.vision_shapes import tower_sizes

SIDE = 16
"""Patches of the picture in each direction."""
GIVEN = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 96,
}
FAMILIES: dict[str, tuple[Callable[..., Any], Any]] = {
    "qwen2_5_vl": (
        lambda layers: Qwen2_5_VLVisionConfig(
            depth=layers, window_size=32, fullatt_block_indexes=[0], **GIVEN
        ),
        Qwen2_5_VisionTransformerPretrainedModel,
    ),
    "qwen3_vl": (
        lambda layers: Qwen3VLVisionConfig(depth=layers, deepstack_visual_indexes=[0], **GIVEN),
        Qwen3VLVisionModel,
    ),
}


def measured(family: str, layers: int, dtype: DType) -> tuple[TowerSizes, int, int]:
    """Return a tower's sizes, and the bytes of what it keeps for a backward pass and returns."""
    config, kind = FAMILIES[family]
    config = config(layers)
    network = kind._from_config(config, attn_implementation="sdpa").to(getattr(torch, dtype))
    weights = {each.data_ptr() for each in network.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    numbers = 3 * config.temporal_patch_size * config.patch_size**2
    pixels_PD = torch.rand(SIDE**2, numbers)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = network(pixels_PD, torch.tensor([[1, SIDE, SIDE]]))
    inner = getattr(found, "deepstack_features", None) or []
    returned = sum(each.nbytes for each in (found.pooler_output, *inner))
    sizes = tower_sizes({"model_type": family, "vision_config": config.to_dict()})
    return sizes, sum(each.untyped_storage().nbytes() for each in kept.values()), returned


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [*FAMILIES])
def test_two_more_layers_of_a_tower_keep_what_is_estimated_of_them(
    family: str, dtype: DType
) -> None:
    tokens, learning = SIDE**2 // 4, LearningConfig()
    few, more = (measured(family, layers, dtype) for layers in (1, 3))
    least, most = (tower_bytes(sizes, tokens, dtype, learning).kept for sizes, *_ in (few, more))
    assert (more[1] - few[1]) / (most - least) == pytest.approx(1, abs=0.1)
    # Pixels are there besides, as they arrive and normalised.
    pixels = SIDE**2 * more[0].numbers_of_patch * 5
    assert more[1] + more[2] + pixels == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize("family", [*FAMILIES])
def test_features_have_the_planned_bytes(family: str) -> None:
    for dtype in ("float32", "bfloat16"):
        sizes, _, returned = measured(family, 2, dtype)
        assert returned == SIDE**2 // 4 * feature_bytes(sizes, dtype)


def test_a_tower_that_is_recomputed_or_does_not_learn_keeps_less() -> None:
    sizes = tower_sizes({"model_type": "qwen3_vl", "vision_config": {**GIVEN, "depth": 9}})
    whole = LearningConfig(archon=ArchonConfig(ac_mode="full"))
    every, again, none = (
        tower_bytes(sizes, 64, "bfloat16", each) for each in (LearningConfig(), whole, None)
    )
    assert none.kept == 64 * 96 * (1 + 3) * 2
    # Of each of nine layers the input, 256 patches of 64 numbers, instead of 11 times those and
    # twice 160.
    assert every.kept - again.kept == 9 * 256 * (11 * 64 + 2 * 160 - 64) * 2
    assert none.kept < none.most < again.kept < every.kept < every.most
