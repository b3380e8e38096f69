"""Models with a value head: their tensors, who holds the head, and the folders they come from."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from mindrl.checkpoint.files import check_files
from mindrl.errors import ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.sharding import full_sharding
from mindrl.training.megatron.sharding import megatron_sharding

MakeModel = Callable[[bool], Path]
QWEN2 = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=4,
    hidden_size=4,
    intermediate_size=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=1,
    vocab_size=7,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)


@pytest.mark.parametrize("tied", [True, False])
def test_one_row_takes_the_place_of_the_vocabulary(tied: bool) -> None:
    model = replace(QWEN2, tie_word_embeddings=tied)
    ordinary, valued = logical_shapes(model), logical_shapes(model, head="value")
    assert valued["score.weight"] == (1, 4)
    assert valued.keys() - ordinary.keys() == {"score.weight"}
    assert ordinary.keys() - valued.keys() == (set() if tied else {"lm_head.weight"})
    sharding = full_sharding(model, world_size=1, holders=[0], dtype="float32", head="value")
    assert {name: entry.shape for name, entry in sharding.table(0).items()} == valued


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_lies_whole_on_every_tensor_parallel_rank_of_the_last_chunk_and_nowhere_else(
    tied: bool,
) -> None:
    model = replace(QWEN2, tie_word_embeddings=tied)
    layout = TrainLayout(tp=2, pp=2, vpp=2)
    sharding = megatron_sharding(model, layout, dtype="float32", head="value")
    held = [
        [name for name in sharding.table(rank) if name.endswith("output_layer.weight")]
        for rank in range(4)
    ]
    # Ranks 2 and 3 are the last stage.
    assert held == [[], [], ["chunk1.output_layer.weight"], ["chunk1.output_layer.weight"]]
    for rank in (2, 3):
        entry = sharding.table(rank)["chunk1.output_layer.weight"]
        assert entry.shape == (1, 4)
        assert [placement.tensor for placement in entry.placements] == ["score.weight"]


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize(
    ("family", "config"), [("Qwen2", "Qwen2Config"), ("Qwen3Moe", "Qwen3MoeConfig")]
)
def test_what_transformers_writes_of_a_classifier_of_one_label_is_read(
    family: str, config: str, kind: str, tmp_path: Path
) -> None:
    written = getattr(transformers, config)(num_labels=1, architectures=[family + kind])
    written.token_classification_bias = False
    written.save_pretrained(tmp_path)
    assert len(json.loads((tmp_path / "config.json").read_text("utf-8"))["id2label"]) == 1
    assert read_description(str(tmp_path)).hidden_size == written.hidden_size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # transformers leaves two labels out.
        (
            {"architectures": ["Qwen2ForSequenceClassification"]},
            "num_labels=2 is not supported; only 1",
        ),
        (
            {
                "architectures": ["Qwen2ForSequenceClassification"],
                "id2label": {"0": "bad", "1": "fair", "2": "good"},
            },
            "num_labels=3 is not supported; only 1",
        ),
        (
            {"architectures": ["Qwen2ForTokenClassification"], "num_labels": 5},
            "num_labels=5 is not supported; only 1",
        ),
        (
            {"architectures": ["Qwen2ForTokenClassification"], "id2label": {"0": "value"}},
            "token_classification_bias=true is not supported; only false",
        ),
    ],
)
def test_a_classifier_that_gives_no_single_product_is_refused(
    change: dict[str, Any], message: str, random_model: MakeModel, tmp_path: Path
) -> None:
    values = json.loads((random_model(True) / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | change), "utf-8")
    with pytest.raises(ModelError) as caught:
        read_description(str(tmp_path))
    assert str(caught.value) == f"{tmp_path}/config.json: {message}"


def test_a_causal_language_model_can_become_a_critic_and_is_no_reward_model(
    random_model: MakeModel,
) -> None:
    folder = str(random_model(False))
    model = read_description(folder)
    check_files(folder, model, head="value", draws_missing_head=True)
    with pytest.raises(ModelError) as caught:
        check_files(folder, model, head="value")
    assert str(caught.value) == (
        f"{folder}: no tensor score.weight; a reward model needs this head, and a causal "
        "language model lacks it"
    )
