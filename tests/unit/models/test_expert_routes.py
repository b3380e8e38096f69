"""Bytes of the routes of shipped models, computed by hand."""

from dataclasses import replace
from pathlib import Path

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, MoeDescription, read_description
from mindrl.models.expert_routes import route_bytes_per_token

SIZES = Path(__file__).parents[3] / "configs" / "models"


def described(name: str) -> tuple[ModelDescription, MoeDescription]:
    model = read_description(str(SIZES / name))
    assert model.moe is not None
    return model, model.moe


def test_a_token_takes_a_byte_per_expert_and_layer_of_the_fullest_stage() -> None:
    model, _ = described("Qwen3-30B-A3B")
    # 48 layers of 8 experts.
    assert route_bytes_per_token(model, TrainLayout()) == 384
    assert route_bytes_per_token(model, TrainLayout(pp=4)) == 96
    uneven = TrainLayout(pp=2, layers_per_chunk=(20, 28))
    assert route_bytes_per_token(model, uneven) == 28 * 8
    assert route_bytes_per_token(replace(model, moe=None), TrainLayout()) == 0


def test_256_experts_and_the_free_choice_need_two_bytes_and_dense_layers_none() -> None:
    model, moe = described("DeepSeek-R1")
    assert (moe.num_experts, moe.num_experts_per_tok, len(moe.dense_layers)) == (256, 8, 3)
    assert route_bytes_per_token(model, TrainLayout()) == 58 * 8 * 2
