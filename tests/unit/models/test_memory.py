"""Bytes of weights, gradients and optimizer by numbers of one's own, and estimates of activations.

That the numbers are Megatron's own is shown in tests/distributed/test_memory.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.models.decoder import rollout_side, training_side
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.memory import TrainedBytes, held_bytes, kv_bytes_per_token, trained_bytes

MODELS = Path(__file__).parents[3] / "configs" / "models"
QWEN_7B = 7_615_616_512
"""Weights of Qwen2.5-7B, as its model card says: 7.61 billion."""
TINY = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=2,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=10,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)
# Norms 8 and 8, QKV (8 + 2 * 4) * 8, output 8 * 8, gate and up 24 * 8, down 8 * 12.
LAYER = 8 + 8 + 128 + 64 + 192 + 96
EMBEDDING, NORM = 80, 8


def trained(layout: TrainLayout, *, shared: bool, bf16: bool = True) -> tuple[TrainedBytes, ...]:
    side = training_side(TINY, layout, dtype="bfloat16" if bf16 else "float32")
    return trained_bytes(side, layout, distributed_optimizer=shared)


def test_without_the_distributed_optimizer_every_weight_takes_18_bytes_in_bfloat16() -> None:
    (found,) = trained(TrainLayout(), shared=False)
    count = EMBEDDING + 2 * LAYER + NORM
    assert found == TrainedBytes(weights=2 * count, gradients=4 * count, optimizer=12 * count)


def test_in_float32_there_are_no_main_weights() -> None:
    (found,) = trained(TrainLayout(), shared=False, bf16=False)
    count = EMBEDDING + 2 * LAYER + NORM
    assert found == TrainedBytes(weights=4 * count, gradients=4 * count, optimizer=8 * count)


def test_with_it_parameters_are_padded_to_64_and_the_whole_to_a_multiple_of_128() -> None:
    (found,) = trained(TrainLayout(), shared=True)
    # Each layer's six parameters in whole 64s: 64 + 64 + 128 + 64 + 192 + 128.
    padded = 128 + 2 * 640 + 64
    assert padded == 1472
    assert found.weights == 2 * 1536
    assert found.gradients == 4 * 1536
    assert found.optimizer == 12 * (EMBEDDING + 2 * LAYER + NORM)


def test_ranks_have_equal_parts_of_the_padded_buffer_and_so_not_of_the_parameters() -> None:
    ranks = trained(TrainLayout(dp=3), shared=True)
    # 1472 up to a multiple of 384, the common multiple of 3 and 128: each has 512 places.
    assert {rank.gradients for rank in ranks} == {4 * 1536}
    # In reverse: the final norm at 0, down at 64, gate and up at 192, a norm at 384, half of QKV.
    first = 8 + 96 + 192 + 8 + 64
    # Its other half, the output and a norm, then down, gate and up of the first layer.
    second = 64 + 64 + 8 + 96 + 192
    third = EMBEDDING + 2 * LAYER + NORM - first - second
    assert [rank.optimizer for rank in ranks] == [12 * first, 12 * second, 12 * third]


def test_two_stages_hold_the_embedding_each_in_a_bucket_of_its_own() -> None:
    first, last = trained(TrainLayout(pp=2), shared=True)
    # A layer of 640 places, and the embedding's 80 up to 128 behind it.
    assert first.gradients == 4 * (640 + 128)
    # The embedding comes first, then the final norm's 64 and the layer up to 768.
    assert last.gradients == 4 * (128 + 768)
    unshared = trained(TrainLayout(pp=2), shared=False)
    assert [rank.gradients for rank in unshared] == [
        4 * (EMBEDDING + LAYER),
        4 * (EMBEDDING + LAYER + NORM),
    ]


def test_known_models_take_two_bytes_a_weight_on_both_sides() -> None:
    model = read_description(str(MODELS / "Qwen2.5-7B"))
    layout = TrainLayout(tp=4, dp=2)
    side = training_side(model, layout, dtype="bfloat16")
    (found,) = set(held_bytes(side))
    # Norms lie whole on every rank: 57 of 3584.
    assert found == 2 * (QWEN_7B + 3 * 57 * 3584) // 4
    rollout = rollout_side(model, RolloutLayout(tp=1), dtype="bfloat16")
    assert held_bytes(rollout) == (2 * QWEN_7B,)


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        # 28 layers, 4 key-value heads of 128, keys and values, 2 bytes.
        ("Qwen2.5-7B", 1, 28 * 4 * 128 * 2 * 2),
        ("Qwen2.5-7B", 4, 28 * 1 * 128 * 2 * 2),
        # More ranks than heads: each still has one.
        ("Qwen2.5-7B", 8, 28 * 1 * 128 * 2 * 2),
        # 61 layers, a latent of 512 and a rotary key of 64, on every rank.
        ("DeepSeek-V3", 8, 61 * 576 * 2),
    ],
)
def test_bytes_of_a_token_in_the_kv_cache(model: str, tp: int, expected: int) -> None:
    description = read_description(str(MODELS / model), to_plan=True)
    assert kv_bytes_per_token(description, RolloutLayout(tp=tp), "bfloat16") == expected


PASSES = Passes(layout=TrainLayout(), dtype="bfloat16", sequence_parallel=False, tokens=4096)
WHOLE = 4096 * (2 * 4096 * 2 + 4 * 4096 * 4)
"""Of Llama 3.1 8B and 4096 tokens: what norms give, and in float32 what they read and scale."""
ROTATION = 4096 * 2 * 4 * 128
LLAMA_LAYER = WHOLE + ROTATION + 4096 * 2 * (3 * (32 + 8) * 128 + 5 * 14336)


def llama() -> ModelDescription:
    return read_description(str(MODELS / "Llama-3.1-8B"))


def test_an_update_keeps_what_every_layer_made_and_works_on_one_more() -> None:
    assert update_estimate(llama(), PASSES) == 33 * LLAMA_LAYER


def test_full_recomputation_keeps_the_inputs_of_the_layers_and_works_on_two() -> None:
    hidden = 2 * 4096 * 4096
    full = replace(PASSES, recompute="full", recompute_method="uniform", recompute_layers=1)
    assert update_estimate(llama(), full) == 32 * hidden + 2 * LLAMA_LAYER
    block = replace(full, recompute_method="block", recompute_layers=24)
    assert update_estimate(llama(), block) == 24 * hidden + (8 + 2) * LLAMA_LAYER


def test_the_first_stage_of_a_pipeline_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    staged = replace(PASSES, layout=TrainLayout(pp=4))
    assert update_estimate(llama(), staged) == (4 * 8 + 1) * LLAMA_LAYER


def test_sequence_parallelism_cuts_what_tensor_parallelism_leaves_whole() -> None:
    cut = replace(PASSES, layout=TrainLayout(tp=4))
    shared = replace(cut, sequence_parallel=True)
    middle = (LLAMA_LAYER - WHOLE - ROTATION) // 4
    assert update_estimate(llama(), cut) == 33 * (WHOLE + ROTATION + middle)
    assert update_estimate(llama(), shared) == 33 * (WHOLE // 4 + ROTATION + middle)


def test_context_parallelism_cuts_the_tokens() -> None:
    halved = replace(PASSES, layout=TrainLayout(cp=2))
    assert forward_estimate(llama(), halved) * 2 == forward_estimate(llama(), PASSES)


def test_logits_of_a_chunk_are_float32_and_a_quarter_more() -> None:
    assert logits_estimate(llama(), 2, 1024) == 1024 * 128_256 // 2 * 5
