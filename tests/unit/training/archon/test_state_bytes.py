"""Bytes of weights, gradients, optimizer and of what is borrowed, by numbers of one's own.

That FSDP2 has the first ones is shown in tests/distributed/test_archon_cuts.py.
"""

from dataclasses import replace

import pytest

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.archon.state_bytes import archon_borrowed_bytes, archon_trained_bytes
from mindrl.training.trained_bytes import TrainedBytes

TINY = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=3,
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
# Norms 8 and 8, queries 8 * 8, keys and values 4 * 8 each, output 8 * 8, gate and up 12 * 8 each,
# down 8 * 12.
LAYER = 8 + 8 + 64 + 32 + 32 + 64 + 96 + 96 + 96
EMBEDDING, NORM = 80, 8
WHOLE = 3 * LAYER + EMBEDDING + NORM
MIXTURE = replace(
    TINY, moe=MoeDescription(num_experts=4, num_experts_per_tok=2, intermediate_size=6)
)


def of(elements: int, padded: int = 0) -> TrainedBytes:
    return TrainedBytes(
        weights=4 * (elements + padded), gradients=4 * elements, optimizer=8 * elements
    )


def borrowed(layout: TrainLayout, model: ModelDescription = TINY, *, learns: bool = False) -> int:
    return archon_borrowed_bytes(model, layout, "bfloat16", head="vocabulary", learns=learns)


def test_one_rank_has_16_bytes_of_every_weight_whatever_it_computes_in() -> None:
    assert archon_trained_bytes(archon_sharding(TINY, TrainLayout())) == (of(WHOLE),)


def test_two_ranks_that_share_all_have_half_each() -> None:
    shared = archon_trained_bytes(archon_sharding(TINY, TrainLayout(dp=2)))
    assert shared == (of(WHOLE // 2),) * 2
    copied = archon_trained_bytes(archon_sharding(TINY, TrainLayout(dp=2), fsdp_size=1))
    assert copied == (of(WHOLE),) * 2


def test_the_last_of_three_ranks_has_fewer_rows_and_the_memory_of_as_many() -> None:
    # Of 8 rows 3, 3 and 2; of 4 rows 2, 2 and none; of 12 rows 4 each; of 10 rows 4, 4 and 2.
    first = 3 * (2 * 3 + 2 * 3 * 8 + 2 * 2 * 8 + 2 * 4 * 8 + 3 * 12) + 4 * 8 + 3
    last = 3 * (2 * 2 + 2 * 2 * 8 + 0 + 2 * 4 * 8 + 2 * 12) + 2 * 8 + 2
    found = archon_trained_bytes(archon_sharding(TINY, TrainLayout(dp=3)))
    assert found == (of(first), of(first), of(last, padded=first - last))


def test_whole_at_a_time_are_a_layer_and_what_lies_outside_and_what_came_before() -> None:
    outside = EMBEDDING + NORM
    for layout in (TrainLayout(), TrainLayout(dp=4), TrainLayout(cp=2)):
        assert borrowed(layout) == 2 * (outside + LAYER + 2 * LAYER)
        # Weights and gradients, the next layer, and gradients of the one before on their way.
        learning = 2 * (outside + EMBEDDING + 3 * LAYER) + 4 * LAYER
        assert borrowed(layout, learns=True) == learning


def test_a_large_vocabulary_comes_before_the_first_layer_and_its_gradients_travel_last() -> None:
    large = replace(TINY, vocab_size=1000)
    outside = 8000 + NORM
    for layout, ranks in ((TrainLayout(dp=4), 4), (TrainLayout(dp=2, cp=4), 8)):
        assert borrowed(layout, large) == 2 * (2 * outside + 2 * LAYER)
        learning = borrowed(layout, large, learns=True)
        assert learning == 2 * 8000 + 4 * (outside + outside // ranks)


def test_in_a_pipeline_all_layers_of_a_stage_stay_and_their_gradients_are_float32() -> None:
    layout = TrainLayout(pp=2, layers_per_chunk=(2, 1))
    # The embedding is with two layers; its copy and the norm with one.
    assert borrowed(layout) == 2 * (EMBEDDING + 2 * LAYER)
    learning = borrowed(layout, learns=True)
    assert learning == (2 + 4) * (EMBEDDING + 2 * LAYER) + 4 * LAYER


@pytest.mark.parametrize("ep", [1, 2])
def test_of_experts_a_rank_borrows_those_of_its_expert_parallel_rank(ep: int) -> None:
    experts, layout = 3 * 6 * 8, TrainLayout(dp=4, ep=ep)
    rest = LAYER - 3 * 96 + 4 * 8
    assert borrowed(layout, MIXTURE) == 2 * (EMBEDDING + NORM + 3 * (rest + 4 * experts // ep))
    # It keeps one of the four, a quarter of the rest, and three of the ten rows of the embedding.
    (one, *_) = archon_trained_bytes(archon_sharding(MIXTURE, layout))
    assert one == of(3 * experts + (3 * rest + NORM) // 4 + 3 * 8)
