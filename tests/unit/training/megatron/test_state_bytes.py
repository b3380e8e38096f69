"""Bytes of weights, gradients and optimizer by numbers of one's own.

That the numbers are Megatron's own is shown in tests/distributed/test_memory.py.
"""

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.state_bytes import trained_bytes
from mindrl.training.trained_bytes import TrainedBytes

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
    sharding = megatron_sharding(TINY, layout, dtype="bfloat16" if bf16 else "float32")
    return trained_bytes(sharding, layout, distributed_optimizer=shared)


# Room for a step: the roots of gate and up and their quotients, and those of another tensor.
STEP = 4 * (2 * 192 + 192)


def test_without_the_distributed_optimizer_every_weight_takes_18_bytes_in_bfloat16() -> None:
    (found,) = trained(TrainLayout(), shared=False)
    count = EMBEDDING + 2 * LAYER + NORM
    assert found == TrainedBytes(
        weights=2 * count, gradients=4 * count, optimizer=12 * count, step=STEP
    )


def test_in_float32_there_are_no_main_weights() -> None:
    (found,) = trained(TrainLayout(), shared=False, bf16=False)
    count = EMBEDDING + 2 * LAYER + NORM
    assert found == TrainedBytes(
        weights=4 * count, gradients=4 * count, optimizer=8 * count, step=STEP
    )


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
    # The first two have gate and up, and down; the third QKV and the embedding.
    assert [rank.step for rank in ranks] == [4 * (2 * 192 + 96)] * 2 + [4 * (2 * 128 + 80)]


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


def test_buckets_of_overlap_are_padded_each_on_the_first_stage_alone() -> None:
    layout = TrainLayout(pp=2, dp=2)
    sharding = megatron_sharding(TINY, layout, dtype="bfloat16")
    sizes = {
        least: trained_bytes(sharding, layout, distributed_optimizer=True, bucket_size=least)
        for least in (None, 200, 400)
    }
    # In reverse: down at 0, gate and up 192 from 128 to 320, which is 200 or more: 384 places. Then
    # a norm, QKV and output up to 256, the other norm in 128, and the embedding in 128.
    assert sizes[200][0].gradients == 4 * (384 + 256 + 128 + 128)
    # With 400 the first bucket also has the norm and QKV, up to 512; then output and norm in 128.
    assert sizes[400][0].gradients == 4 * (512 + 128 + 128)
    for least in (200, 400):
        assert sizes[least][-1] == sizes[None][-1]
