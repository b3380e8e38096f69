"""Llama and its relatives: rotary positions as a config.json names them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindrl.errors import ModelError
from mindrl.models.description import read_description
from mindrl.models.rope import LinearScaling, Llama3Scaling

MODELS = Path(__file__).parents[3] / "configs" / "models"


def llama(**change: Any) -> dict[str, Any]:
    values = json.loads((MODELS / "Llama-3.1-8B" / "config.json").read_text("utf-8"))
    return {key: value for key, value in (values | change).items() if value != "left out"}


LLAMA_3 = llama()["rope_scaling"]


def folder_with(tmp_path: Path, values: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(tmp_path)


def test_llama_3_1_scales_by_8_and_llama_3_2_by_32_the_waves_longer_than_8192_positions() -> None:
    model = read_description(str(MODELS / "Llama-3.1-8B"))
    assert model.rope_scaling == Llama3Scaling(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    assert (model.rope_theta, model.head_dim, model.heads_per_group) == (5e5, 128, 4)
    assert not model.attention_bias
    assert not model.tie_word_embeddings
    small = read_description(str(MODELS / "Llama-3.2-1B"))
    assert isinstance(small.rope_scaling, Llama3Scaling)
    assert (small.rope_scaling.factor, small.head_dim) == (32.0, 64)
    assert small.tie_word_embeddings


def test_scaled_positions_say_the_same_in_the_words_of_transformers_4_and_5(
    tmp_path: Path,
) -> None:
    old = read_description(folder_with(tmp_path, llama()))
    both = llama()["rope_scaling"] | {"rope_theta": 5e5}
    new = llama(rope_theta="left out", rope_scaling="left out", rope_parameters=both)
    assert read_description(folder_with(tmp_path, new)) == old
    assert old.rope_scaling is not None


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_linear_scaling_is_read_under_both_names_of_its_kind(
    key: str, family: str, tmp_path: Path
) -> None:
    values = llama(model_type=family, rope_scaling={key: "linear", "factor": 4.0})
    assert read_description(folder_with(tmp_path, values)).rope_scaling == LinearScaling(factor=4.0)


def test_llama_2_leaves_the_base_of_10000_and_the_scaling_out(tmp_path: Path) -> None:
    values = llama(rope_theta="left out", rope_scaling=None, num_key_value_heads=32)
    model = read_description(folder_with(tmp_path, values))
    assert (model.rope_theta, model.rope_scaling) == (10_000.0, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "attention_bias=true is not supported in this family"),
        ({"mlp_bias": True}, "mlp_bias=true is not supported in this family"),
        ({"sliding_window": "512"}, "sliding_window='512' must be a valid integer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported; only 1.0"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            (
                "rope scaling {'rope_type': 'dynamic', 'factor': 2.0} is not supported; "
                "only default, linear, llama3"
            ),
        ),
        (
            {"rope_scaling": {"rope_type": "default", "mrope_section": [16]}},
            (
                "rope scaling {'rope_type': 'default', 'mrope_section': [16]} is not supported; "
                "only default, linear, llama3"
            ),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            (
                "rope scaling {'rope_type': 'linear', 'factor': 2} needs a decimal point in its "
                "factor"
            ),
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            (
                "rope scaling {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0} has "
                "no 'high_freq_factor'"
            ),
        ),
        (
            {"rope_scaling": LLAMA_3 | {"high_freq_factor": 1.0}},
            "low_freq_factor=1.0 must be below high_freq_factor=1.0",
        ),
        (
            {"rope_scaling": LLAMA_3 | {"factor": 0.5}},
            "factor=0.5 must be greater than or equal to 1",
        ),
        (
            {"original_max_position_embeddings": 4096},
            "original_max_position_embeddings=4096 outside of rope_scaling is not supported",
        ),
        (
            {"model_type": "phi3"},
            f"rope scaling {LLAMA_3} is not supported; only default",
        ),
    ],
)
def test_what_the_two_sides_would_not_do_alike_is_refused_to_a_run(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, llama(**change))
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json: {message}"


def test_a_mistral_without_a_window_has_the_head_size_that_it_names(tmp_path: Path) -> None:
    values = llama(model_type="mistral", sliding_window=None, rope_scaling=None, head_dim=96)
    model = read_description(folder_with(tmp_path, values))
    assert (model.head_dim, model.fused_projections) == (96, False)
