"""Tensors of published vision-language models by config.json, next to transformers' own."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from mindrl.checkpoint.any_family import read_any_description
from mindrl.errors import ModelError
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config
from mindrl.models.decoder import logical_shapes
from mindrl.models.vision_shapes import tower_sizes

SIZES = Path(__file__).parents[3] / "configs/models"
PARAMETERS = {"Qwen2.5-VL-7B-Instruct": 8_292_166_656, "Qwen3-VL-8B-Instruct": 8_767_123_696}
"""As the model cards of the hub count them."""


@pytest.mark.parametrize("name", [*PARAMETERS])
def test_shipped_sizes_give_each_tensor_of_transformers(name: str) -> None:
    folder = str(SIZES / name)
    with torch.device("meta"):
        network: Any = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    wanted = {key: tuple(each.shape) for key, each in network.named_parameters()}
    model = read_any_description(folder, to_plan=True)
    assert logical_shapes(model) == wanted
    assert sum(map(prod, wanted.values())) == PARAMETERS[name]
    tower = network.config.vision_config
    assert model.other is not None
    assert model.other.vision is not None
    sizes = model.other.vision.sizes
    assert sizes.numbers_of_patch == 3 * tower.temporal_patch_size * tower.patch_size**2
    deep = len(getattr(tower, "deepstack_visual_indexes", ()))
    assert sizes.numbers_of_token == (1 + deep) * network.config.text_config.hidden_size


def test_sizes_that_a_config_lacks_are_those_of_transformers() -> None:
    for family in ("qwen2_5_vl", "qwen3_vl"):
        theirs: Any = AutoConfig.for_model(family).vision_config
        ours = tower_sizes({"model_type": family, "vision_config": {}})
        found = (ours.layers, ours.hidden_size, ours.intermediate_size, ours.out_hidden_size)
        names = ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
        assert found == tuple(getattr(theirs, name) for name in names)
        found = (ours.patch, ours.frames, ours.merge, ours.places)
        names = ("patch_size", "temporal_patch_size", "spatial_merge_size")
        wanted = tuple(getattr(theirs, name) for name in names)
        assert found == (*wanted, getattr(theirs, "num_position_embeddings", 0))
        assert ours.inner == len(getattr(theirs, "deepstack_visual_indexes", ()))


def test_a_tower_of_no_layers_is_refused_with_the_key(tmp_path: Path) -> None:
    path, values = read_config(str(SIZES / "Qwen3-VL-8B-Instruct"))
    values["vision_config"]["depth"] = 0
    tensors: Mapping[str, tuple[int, ...]] = {
        "model.language_model.embed_tokens.weight": (151936, 4096),
        "model.language_model.layers.0.mlp.up_proj.weight": (12288, 4096),
    }
    with pytest.raises(ModelError, match=r"vision_config\.depth=0 must be a positive integer"):
        any_description(path, values, tensors)
    # Without weight files too.
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ModelError, match=r"vision_config\.depth=0 must be a positive integer"):
        read_any_description(str(tmp_path))
