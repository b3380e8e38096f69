"""Models of families that mindrl has no network of: their sizes, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.checkpoint.any_family import read_any_description
from mindrl.errors import ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.any_family import any_description
from mindrl.models.decoder import layer_of, logical_shapes, parameters_of
from mindrl.training.archon.legality import archon_findings
from mindrl.training.archon.sharding import archon_sharding

GPT: dict[str, Any] = {
    "architectures": ["GPTLikeModel"],
    "model_type": "gpt-like",
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 16,
    "vocab_size": 5,
}
TENSORS = {
    "t.wte.weight": (5, 8),
    "t.h.0.up.weight": (7, 8),
    "t.h.1.up.weight": (7, 8),
    "t.h.1.up.bias": (7,),
}
FILE = Path("there/config.json")


def test_sizes_have_the_names_of_transformers_and_tensors_those_of_the_files() -> None:
    model = any_description(FILE, GPT, TENSORS)
    assert (model.hidden_size, model.head_dim, model.num_key_value_heads) == (8, 4, 2)
    assert (model.intermediate_size, model.max_position_embeddings) == (32, 16)
    assert logical_shapes(model) == TENSORS
    assert model.tie_word_embeddings
    assert not any_description(FILE, GPT, TENSORS | {"head": (5, 8)}).tie_word_embeddings
    assert parameters_of(model).dense == (56, 63)
    assert [*map(layer_of, TENSORS)] == [None, 0, 1, 1]


def test_ranks_share_the_rows_of_every_tensor_rounded_up() -> None:
    model = any_description(FILE, GPT, TENSORS)
    sharding = archon_sharding(model, TrainLayout(dp=2, cp=2))
    rows = [sharding.table(rank)["t.wte.weight"].shape for rank in range(2)]
    assert rows == [(2, 8), (2, 8)]
    last = sharding.table(3)
    assert "t.wte.weight" not in last
    assert last["t.h.1.up.bias"].placements[0].source == ((6, 7),)


def test_tensor_parallelism_is_refused() -> None:
    model = any_description(FILE, GPT, TENSORS)
    (found,) = archon_findings(model, TrainLayout(tp=2), {"tp": "tensor_size"})
    assert str(found) == (
        "tensor_size=2 needs a family that mindrl has a network of: how another one's matrices may "
        "be cut is not known; 1 is legal"
    )


@pytest.mark.parametrize(
    ("values", "tensors", "error"),
    [
        ({"n_embd": None}, {}, " has no 'hidden_size'"),
        ({"final_logit_softcapping": 30.0}, {}, "logits are made by the head alone"),
        ({"logit_scale": 0.5}, {}, "logit_scale=0.5 is not supported"),
        ({"sliding_window": 8}, {}, "sliding_window=8 is not supported; only null"),
        ({"layer_types": ["chunked"]}, {}, "layer_types with 'chunked' is not supported"),
        ({"attn_logit_softcapping": 50.0}, {}, "attn_logit_softcapping is not supported"),
        ({"architectures": None}, {}, "architectures=None must name one class"),
        ({"quantization_config": {"bits": 4}}, {}, "quantized weights"),
        ({}, {"t.scale": ()}, "tensor t.scale is a single number"),
    ],
)
def test_what_packs_or_a_plain_head_cannot_do_is_refused(
    values: dict[str, Any], tensors: dict[str, tuple[int, ...]], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        any_description(FILE, GPT | values, TENSORS | tensors)


def test_a_folder_of_a_known_family_is_described_as_ever(
    random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = random_model_of("qwen3")
    assert read_any_description(str(folder)).other is None
    found = read_any_description(str(random_model_of("stablelm"))).other
    assert found is not None
    assert found.architecture == "StableLmForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps(GPT), "utf-8")
    with pytest.raises(ModelError, match=r"has no \.safetensors file"):
        read_any_description(str(tmp_path))
