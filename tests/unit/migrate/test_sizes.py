"""The sizes of MindSpeed-RL's model files are those of the models that they are of."""

import json
from pathlib import Path
from typing import Any

import pytest
from mindspeed_rl_files import (
    DEEPSEEK_V3,
    LLAMA_32_1B,
    OLD_NAMES,
    QWEN3_30B,
    QWEN25_7B,
    with_names_of_2_2,
)

from mindrl.migrate.file import their_run
from mindrl.migrate.sizes import model_sizes
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description

MODELS = Path(__file__).parents[3] / "configs" / "models"


def sizes(model: dict[str, Any]) -> dict[str, Any] | None:
    return model_sizes(their_run({"megatron_training": {"model": "m"}}, {"m": model}))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (QWEN25_7B, "Qwen2.5-7B"),
        (LLAMA_32_1B, "Llama-3.2-1B"),
        (QWEN3_30B, "Qwen3-30B-A3B"),
        (with_names_of_2_2(QWEN3_30B), "Qwen3-30B-A3B"),
        (DEEPSEEK_V3, "DeepSeek-V3"),
        (with_names_of_2_2(DEEPSEEK_V3), "DeepSeek-V3"),
    ],
)
def test_each_tensor_has_the_shape_that_the_published_model_has(
    tmp_path: Path, model: dict[str, Any], name: str
) -> None:
    (tmp_path / "sizes.json").write_text(json.dumps(sizes(model)))
    found = read_description(str(tmp_path / "sizes.json"))
    published = read_description(str(MODELS / name))
    assert logical_shapes(found) == logical_shapes(published)
    assert found.vocab_size == published.vocab_size


def test_a_dense_qwen3_normalises_its_heads_and_has_no_bias() -> None:
    changed = QWEN25_7B | {"qk_layernorm": True, "add_qkv_bias": None}
    assert (sizes(changed) or {})["model_type"] == "qwen3"


def test_empty_layers_are_no_layers_of_the_model() -> None:
    assert (sizes(QWEN25_7B | {"noop_layers": "26,27"}) or {})["num_hidden_layers"] == 26


@pytest.mark.parametrize(
    "change",
    [
        {"padded_vocab_size": None},
        {"num_layers": None},
        {"multi_latent_attention": True},
        {"num_experts": 8, "n_shared_experts": 1},
    ],
)
def test_sizes_that_are_not_all_said_or_of_no_known_family_are_not_kept(
    change: dict[str, Any],
) -> None:
    assert sizes(QWEN25_7B | change) is None


def test_the_old_names_are_those_that_went_with_2_2() -> None:
    assert set(OLD_NAMES) <= DEEPSEEK_V3.keys()
    assert not set(OLD_NAMES) & with_names_of_2_2(DEEPSEEK_V3).keys()
