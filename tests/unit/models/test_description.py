"""What is read from a config.json, in the words of transformers 4 and 5, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2ForCausalLM

from mindrl.errors import ModelError
from mindrl.models.description import read_description

MakeModel = Callable[[bool], Path]
QWEN_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
"""Qwen2.5-7B, as published."""


def folder_with(tmp_path: Path, values: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(tmp_path)


def test_qwen2_5_7b_has_7_615_616_512_parameters_and_7_query_heads_a_group(tmp_path: Path) -> None:
    model = read_description(folder_with(tmp_path, QWEN_7B))
    assert model.parameter_count == 7_615_616_512
    assert model.heads_per_group == 7
    assert model.head_dim == 128
    assert model.rope_theta == 1e6
    assert model.rms_norm_eps == 1e-6
    assert not model.tie_word_embeddings


def test_the_parameters_of_transformers_5_say_the_same_as_those_of_transformers_4(
    tmp_path: Path,
) -> None:
    old = read_description(folder_with(tmp_path, QWEN_7B | {"rope_scaling": None}))
    values = {key: value for key, value in QWEN_7B.items() if key != "rope_theta"}
    values |= {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}
    new = read_description(folder_with(tmp_path, values))
    assert new == old


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_installed_transformers_writes_is_read(
    tied: bool, random_model: MakeModel
) -> None:
    folder = random_model(tied)
    model = read_description(str(folder))
    real = Qwen2ForCausalLM.from_pretrained(folder)
    assert model.tie_word_embeddings == tied
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (4, 2, 32)
    assert model.parameter_count == sum(parameter.numel() for parameter in real.parameters())


def test_without_key_value_heads_each_query_head_has_its_own(tmp_path: Path) -> None:
    values = {key: value for key, value in QWEN_7B.items() if key != "num_key_value_heads"}
    model = read_description(folder_with(tmp_path, values))
    assert model.num_key_value_heads == 28
    assert model.heads_per_group == 1


def test_a_head_size_of_its_own_is_taken_rather_than_derived(tmp_path: Path) -> None:
    assert read_description(folder_with(tmp_path, QWEN_7B | {"head_dim": 64})).head_dim == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "qwen3"},
            "model_type='qwen3' is not supported; supported: qwen2; nearest: qwen2",
        ),
        ({"model_type": "bloom"}, "model_type='bloom' is not supported; supported: qwen2"),
        ({"model_type": None}, "model_type=None is not supported; supported: qwen2"),
        ({"use_sliding_window": True}, "use_sliding_window=true is not supported"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types with 'sliding_attention' is not supported; only 'full_attention'",
        ),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; only 'silu'"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantized weights (quantization_config) are not supported",
        ),
        ({"num_attention_heads": "28"}, "num_attention_heads='28' must be a valid integer"),
        ({"hidden_size": 3.5}, "hidden_size=3.5 must be a valid integer"),
        ({"vocab_size": 0}, "vocab_size=0 must be greater than or equal to 1"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads=3 must divide num_attention_heads=28",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope scaling {'type': 'yarn', 'factor': 4.0} is not supported; only default",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}},
            (
                "rope scaling {'rope_type': 'linear', 'rope_theta': 1000000.0} is not supported; "
                "only default"
            ),
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_what_makes_it_so(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, QWEN_7B | change)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json: {message}"


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    ],
)
def test_a_size_that_is_missing_is_named(key: str, tmp_path: Path) -> None:
    values = {name: value for name, value in QWEN_7B.items() if name != key}
    folder = folder_with(tmp_path, values)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json has no '{key}'"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_description(f"{tmp_path}/nowhere")
    assert str(caught.value) == f"model folder {tmp_path}/nowhere does not exist"


def test_a_folder_without_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_description(str(tmp_path))
    assert str(caught.value) == f"model folder {tmp_path} has no config.json"


@pytest.mark.parametrize("content", [b'{"hidden_size": 3584', b"\xff\xfe\x00", b""])
def test_a_config_json_that_is_no_json_is_refused_with_its_path(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json cannot be read: "):
        read_description(str(tmp_path))


def test_a_config_json_that_holds_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json must hold a JSON object"):
        read_description(folder_with(tmp_path, [QWEN_7B]))
