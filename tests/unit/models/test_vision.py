"""Folders with a vision tower: their sizes and names, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mindrl.checkpoint.any_family import read_any_description, read_seeing_description
from mindrl.errors import ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.any_family import any_description
from mindrl.models.config_file import text_values
from mindrl.models.decoder import layer_of
from mindrl.models.description import read_description
from mindrl.models.other_family import VisionPart
from mindrl.models.vision import file_name, image_token, module_name
from mindrl.rollout.vllm.legality import vllm_findings
from mindrl.training.archon.legality import archon_findings

FILE = Path("there/config.json")
TEXT = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 5,
    "max_position_embeddings": 16,
}
WHOLE: dict[str, Any] = {"image_token_id": 4, "vision_config": {"depth": 3}}
OLD = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    **TEXT,
    **WHOLE,
}
"""As the published folders of Qwen2.5-VL: the sizes of the decoder stand at the top."""
NEW = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {**TEXT, "model_type": "qwen3_vl_text", "tie_word_embeddings": True},
    "tie_word_embeddings": False,
    **WHOLE,
}
OLD_TENSORS = {
    "visual.patch_embed.proj.weight": (8, 3, 2, 14, 14),
    "visual.blocks.2.attn.qkv.weight": (24, 8),
    "model.embed_tokens.weight": (5, 8),
    "model.layers.0.mlp.up_proj.weight": (16, 8),
    "model.layers.1.mlp.up_proj.weight": (16, 8),
    "lm_head.weight": (5, 8),
}
NEW_TENSORS = {
    name.replace("model.", "model.language_model.").replace("visual.", "model.visual."): shape
    for name, shape in OLD_TENSORS.items()
}


def test_sizes_are_those_of_the_decoder_wherever_they_stand() -> None:
    for values, tensors in ((OLD, OLD_TENSORS), (NEW, NEW_TENSORS)):
        model = any_description(FILE, values, tensors)
        assert (model.model_type, model.num_hidden_layers) == (values["model_type"], 2)
        assert (model.hidden_size, model.head_dim) == (8, 4)
        assert not model.tie_word_embeddings
        assert model.reads_images
    assert text_values(NEW)["tie_word_embeddings"] is False
    assert text_values(OLD) == OLD


def test_blocks_of_a_tower_are_no_layers_of_the_decoder() -> None:
    assert [*map(layer_of, OLD_TENSORS)] == [None, None, None, 0, 1, None]
    assert [*map(layer_of, NEW_TENSORS)] == [None, None, None, 0, 1, None]


def test_tensors_have_one_name_in_files_and_one_in_modules() -> None:
    modules = [*NEW_TENSORS]
    for values, tensors in ((OLD, OLD_TENSORS), (NEW, NEW_TENSORS)):
        other = any_description(FILE, values, tensors).other
        assert other is not None
        part = other.vision
        assert isinstance(part, VisionPart)
        assert [file_name(part, name) for name in modules] == [*tensors]
        assert [module_name(part, name) for name in tensors] == modules


def test_tensor_parallel_ranks_cut_the_decoder_by_its_plan_or_that_of_the_same_layers() -> None:
    for values, names in ((OLD, OLD_TENSORS), (OLD, NEW_TENSORS), (NEW, NEW_TENSORS)):
        other = any_description(FILE, values, names).other
        assert other is not None
        assert other.cuts == (None, None, None, 0, 0, None)
        assert [path.rpartition(".")[2] for path, _ in other.styles] == ["up_proj"] * 2


def test_only_pytorchs_engines_train_a_tower(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD))
    with pytest.raises(ModelError, match=r"has a vision tower.*actor_config\.backend=archon:d2"):
        read_description(str(tmp_path))
    assert image_token(str(tmp_path)) == 4
    text = {**TEXT, "num_key_value_heads": 2}
    model = any_description(FILE, OLD | text, OLD_TENSORS)
    newer = any_description(FILE, NEW | {"text_config": NEW["text_config"] | text}, NEW_TENSORS)
    keys = {"tp": "t", "cp": "c", "pp": "p", "model": "m"}
    for each in (model, newer):
        (found,) = archon_findings(each, TrainLayout(pp=2), keys)
        assert found.legal == (1,)
        for name in ("dp", "tp", "cp"):
            assert not [*archon_findings(each, TrainLayout(**{name: 2}), keys)]
    # The kernel of the patches has five dimensions, and is no stack of experts.
    assert not [*vllm_findings(model, RolloutLayout(), keys)]


def test_tensors_of_mindrls_own_network_have_the_names_of_the_files_too() -> None:
    for values, tensors in ((OLD, OLD_TENSORS), (NEW, NEW_TENSORS)):
        part = any_description(FILE, values, tensors).vision
        assert part is not None
        assert [file_name(part, name) for name in OLD_TENSORS] == [*tensors]


SECTIONS = {"mrope_section": [1, 0, 1]}


def test_what_a_decoder_computes_with_is_that_of_its_family() -> None:
    model = any_description(FILE, OLD | {"rope_scaling": SECTIONS}, OLD_TENSORS)
    assert (model.rms_norm_eps, model.rope_theta) == (1e-5, 1e6)
    assert (model.attention_bias, model.qk_norm) == (True, False)
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [0, 1, 1]}
    text = NEW["text_config"] | {"rms_norm_eps": 1e-4, "rope_parameters": rope}
    newer = any_description(FILE, NEW | {"text_config": text}, NEW_TENSORS)
    assert (newer.rms_norm_eps, newer.rope_theta) == (1e-4, 5e6)
    assert (newer.attention_bias, newer.qk_norm) == (False, True)
    parts = model.vision, newer.vision
    assert [(part.sections, part.takes_turns) for part in parts if part] == [
        ((1, 0, 1), False),
        ((0, 1, 1), True),
    ]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"rope_scaling": {"type": "mrope", **SECTIONS}}, None),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, **SECTIONS}}, "rope scaling .* is not"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, r"head_dim / 2 = 2 with"),
        ({"rope_scaling": SECTIONS, "hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    ],
)
def test_a_decoder_that_mindrl_has_not_is_refused_with_archon_alone(
    more: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD | more))
    save_file({name: torch.zeros(s) for name, s in OLD_TENSORS.items()}, tmp_path / "w.safetensors")
    model = read_any_description(str(tmp_path))
    if reason is None:
        assert read_seeing_description(str(tmp_path)) == model
        return
    with pytest.raises(ModelError, match=f"{reason}.*actor_config.backend=fsdp:d2"):
        read_seeing_description(str(tmp_path))


def test_other_families_with_a_tower_are_refused() -> None:
    with pytest.raises(
        ModelError, match="'llava' with a vision_config is not supported; only qwen2_5"
    ):
        any_description(FILE, OLD | {"model_type": "llava"}, OLD_TENSORS)
    with pytest.raises(ModelError, match="image_token_id=None must be"):
        any_description(FILE, OLD | {"image_token_id": None}, OLD_TENSORS)
