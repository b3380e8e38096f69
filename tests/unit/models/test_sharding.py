"""The sharding tables of both engines: complete, without overlap, and true to the real files."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import logical_shapes, padded_vocab_size
from mindrl.models.description import (
    MlaDescription,
    ModelDescription,
    MoeDescription,
    read_description,
)
from mindrl.models.placement import index_of
from mindrl.models.sharding import (
    Sharding,
    elsewhere,
    full_sharding,
)
from mindrl.rollout.vllm.cache import CacheSizes, cache_sizes
from mindrl.rollout.vllm.sharding import padded_vocab_size as padded_rollout_vocab_size
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.sharding import megatron_sharding

SHIPPED = Path(__file__).parents[3] / "configs" / "models"
QWEN_7B = 7_615_616_512
"""Weights of Qwen2.5-7B, as its model card says: 7.61 billion."""
QWEN2 = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=3,
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
FUSED = replace(QWEN2, attention_bias=False, fused_projections=True)
MIXTURE = replace(
    QWEN2,
    model_type="qwen3_moe",
    attention_bias=False,
    qk_norm=True,
    moe=MoeDescription(
        num_experts=4, num_experts_per_tok=2, intermediate_size=4, dense_layers=frozenset({0})
    ),
)
LATENT = replace(
    QWEN2,
    attention_bias=False,
    num_key_value_heads=4,
    mla=MlaDescription(
        q_lora_rank=6, kv_lora_rank=3, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=2
    ),
    moe=MoeDescription(
        num_experts=4,
        num_experts_per_tok=2,
        intermediate_size=4,
        shared_intermediate_size=2,
        score_correction_bias=True,
    ),
)
CORRECTED = replace(
    QWEN2,
    model_type="glm4_moe",
    moe=MoeDescription(
        num_experts=4,
        num_experts_per_tok=2,
        intermediate_size=4,
        shared_intermediate_size=4,
        score_correction_bias=True,
        dense_layers=frozenset({0}),
    ),
)
TRAINING = [
    (QWEN2, TrainLayout(tp=2, dp=2)),
    # Four ranks and two key-value heads: the fused rows are cut inside a group.
    (QWEN2, TrainLayout(tp=4)),
    (QWEN2, TrainLayout(pp=2, tp=2, layers_per_chunk=(2, 1))),
    (replace(QWEN2, num_hidden_layers=4, tie_word_embeddings=True), TrainLayout(pp=2, vpp=2)),
    (FUSED, TrainLayout(tp=4)),
    (MIXTURE, TrainLayout(tp=2, dp=2, ep=4)),
    (MIXTURE, TrainLayout(dp=4, ep=2, etp=2)),
    (LATENT, TrainLayout(tp=2, dp=2, ep=2)),
    # Four ranks and two key-value heads.
    (CORRECTED, TrainLayout(tp=4, ep=2)),
    (CORRECTED, TrainLayout(pp=3)),
]
ROLLOUT = [
    (QWEN2, RolloutLayout(tp=2, dp=2)),
    (QWEN2, RolloutLayout(tp=4)),
    (replace(QWEN2, tie_word_embeddings=True), RolloutLayout(pp=2)),
    (FUSED, RolloutLayout(tp=4)),
    (MIXTURE, RolloutLayout(tp=2, pp=3)),
    # Four experts on three ranks: two, one and one.
    (MIXTURE, RolloutLayout(dp=3, ep=3)),
    (LATENT, RolloutLayout(tp=2, dp=2, ep=4)),
    (CORRECTED, RolloutLayout(tp=4, ep=4)),
    (CORRECTED, RolloutLayout(pp=3)),
]
SHARDINGS = [megatron_sharding(model, layout, dtype="bfloat16") for model, layout in TRAINING]
SHARDINGS += [vllm_sharding(model, layout, dtype="bfloat16") for model, layout in ROLLOUT]
MODELS = [model for model, _ in (*TRAINING, *ROLLOUT)]


def counts(model: ModelDescription) -> dict[str, NDArray[np.int64]]:
    return {name: np.zeros(shape, np.int64) for name, shape in logical_shapes(model).items()}


@pytest.mark.parametrize(("model", "sharding"), list(zip(MODELS, SHARDINGS, strict=True)))
def test_the_ranks_of_a_side_hold_every_element(
    model: ModelDescription, sharding: Sharding
) -> None:
    held = counts(model)
    for rank in range(len(sharding.held_by)):
        for entry in sharding.table(rank).values():
            for placement in entry.placements:
                held[placement.tensor][index_of(placement.source)] += 1
    assert [name for name, count in held.items() if count.min() == 0] == []


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_each_local_element_is_filled_once_and_only_the_vocabulary_is_padded(
    sharding: Sharding,
) -> None:
    for table in sharding.shards.values():
        for name, entry in table.items():
            filled = np.zeros(entry.shape, np.int64)
            for placement in entry.placements:
                filled[index_of(placement.local)] += 1
            padded = ("embedding.word_embeddings", "output_layer", "embed_tokens", "lm_head")
            assert filled.max(initial=0) <= 1, name
            assert filled.min() == 1 or any(part in name for part in padded), name


def local_values(
    sharding: Sharding, rank: int, name: str, whole: dict[str, list[int]]
) -> list[int]:
    """Fill one local tensor of one dimension."""
    entry = sharding.table(rank)[name]
    values = np.zeros(entry.shape, np.int64)
    for placement in entry.placements:
        part = np.array(whole[placement.tensor.split(".")[-2]])[index_of(placement.source)]
        values[index_of(placement.local)] = part
    found: list[int] = values.tolist()
    return found


BIASES = {"q_proj": [0, 1, 2, 3], "k_proj": [10, 11], "v_proj": [20, 21]}
"""Of four query heads and two key-value heads of one element."""


def test_megatron_interleaves_qkv_by_group_and_vllm_stacks_queries_then_keys_then_values() -> None:
    name = "decoder.layers.0.self_attention.linear_qkv.bias"
    for tp, expected in (
        (2, [[0, 1, 10, 20], [2, 3, 11, 21]]),
        (4, [[0, 1], [10, 20], [2, 3], [11, 21]]),
    ):
        sharding = megatron_sharding(QWEN2, TrainLayout(tp=tp), dtype="bfloat16")
        found = [local_values(sharding, rank, f"chunk0.{name}", BIASES) for rank in range(tp)]
        assert found == expected
    name = "model.layers.0.self_attn.qkv_proj.bias"
    for tp, expected in (
        (1, [[0, 1, 2, 3, 10, 11, 20, 21]]),
        (2, [[0, 1, 10, 20], [2, 3, 11, 21]]),
        # Two ranks share a key-value head.
        (4, [[0, 10, 20], [1, 10, 20], [2, 11, 21], [3, 11, 21]]),
    ):
        sharding = vllm_sharding(QWEN2, RolloutLayout(tp=tp), dtype="bfloat16")
        assert [local_values(sharding, rank, name, BIASES) for rank in range(tp)] == expected


def test_gate_and_up_are_each_cut_by_rank_before_they_are_fused() -> None:
    table = megatron_sharding(QWEN2, TrainLayout(tp=2), dtype="bfloat16").table(1)
    entry = table["chunk0.decoder.layers.0.mlp.linear_fc1.weight"]
    assert entry.shape == (8, 4)
    assert [
        (part.tensor.split(".")[-2], part.source[0], part.local[0]) for part in entry.placements
    ] == [("gate_proj", (4, 8), (0, 4)), ("up_proj", (4, 8), (4, 8))]


def test_under_expert_parallelism_a_rank_has_some_experts_whole_and_else_a_part_of_each() -> None:
    name = "model.layers.1.mlp.experts.w2_weight"
    shared = vllm_sharding(MIXTURE, RolloutLayout(tp=2, ep=2), dtype="bfloat16").table(1)[name]
    assert shared.shape == (2, 4, 4)
    assert [part.tensor.split(".")[5] for part in shared.placements] == ["2", "3"]
    cut = vllm_sharding(MIXTURE, RolloutLayout(tp=2), dtype="bfloat16").table(1)[name]
    assert cut.shape == (4, 4, 2)
    assert [part.source for part in cut.placements] == [((0, 4), (2, 4))] * 4


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"), [(96, 1, 96), (96, 2, 96), (97, 2, 98), (97, 4, 100), (7, 4, 8)]
)
def test_the_training_vocabulary_is_rounded_up_to_a_multiple_of_the_ranks(
    vocab: int, tp: int, padded: int
) -> None:
    model = replace(QWEN2, vocab_size=vocab)
    assert padded_vocab_size(model, tp) == padded
    sharding = megatron_sharding(model, TrainLayout(tp=tp), dtype="bfloat16")
    name = "chunk0.embedding.word_embeddings.weight"
    assert [sharding.table(rank)[name].shape[0] for rank in range(tp)] == [padded // tp] * tp


def test_the_rollout_vocabulary_is_rounded_up_to_64_whatever_the_ranks() -> None:
    for size, padded in ((1, 64), (64, 64), (65, 128), (152064, 152064)):
        assert padded_rollout_vocab_size(replace(QWEN2, vocab_size=size)) == padded
    sharding = vllm_sharding(QWEN2, RolloutLayout(tp=2), dtype="bfloat16")
    rows = [sharding.table(rank)["lm_head.weight"].placements for rank in range(2)]
    # Seven tokens lie in the first 32 rows; the second rank holds padding only.
    assert [len(placements) for placements in rows] == [1, 0]


def test_a_tied_head_is_the_embedding_and_on_another_stage_its_copy() -> None:
    tied = replace(QWEN2, tie_word_embeddings=True)
    head, embedding = "chunk0.output_layer.weight", "chunk0.embedding.word_embeddings.weight"
    alone = megatron_sharding(tied, TrainLayout(), dtype="bfloat16").table(0)
    assert embedding in alone
    assert head not in alone
    stages = megatron_sharding(tied, TrainLayout(pp=3), dtype="bfloat16")
    assert stages.table(2)[head] == stages.table(0)[embedding]
    assert embedding not in stages.table(2)


def test_sides_in_a_larger_world_and_sides_of_whole_tensors() -> None:
    sharding = megatron_sharding(QWEN2, TrainLayout(tp=2), dtype="float32")
    moved = elsewhere(sharding, first_rank=1, world_size=4)
    assert [len(held) for held in moved.held_by] == [0, 1, 1, 0]
    assert moved.table(2) == sharding.table(1)
    whole = full_sharding(QWEN2, world_size=3, holders=(1,), dtype="float32")
    assert whole.table(0) == {}
    assert {name: entry.shape for name, entry in whole.table(1).items()} == logical_shapes(QWEN2)


def test_the_correction_bias_of_a_router_is_float32_on_every_side() -> None:
    sharding = megatron_sharding(LATENT, TrainLayout(), dtype="bfloat16")
    assert sharding.element_bytes("model.layers.1.mlp.gate.e_score_correction_bias") == 4
    assert sharding.element_bytes("model.layers.1.mlp.gate.weight") == 2


def test_the_router_of_glm_is_float32_in_the_engine_and_bfloat16_in_training() -> None:
    training = megatron_sharding(CORRECTED, TrainLayout(), dtype="bfloat16")
    (rollout,) = vllm_sharding(CORRECTED, RolloutLayout(), dtype="bfloat16").held_bytes()
    elements = sum(int(np.prod(shape)) for shape in logical_shapes(CORRECTED).values())
    # Two layers with routers of 4 x 4 and biases of 4; 57 rows of padding in both ends.
    assert training.held_bytes() == (2 * (elements + 2 * 4),)
    assert rollout == 2 * (elements + 2 * 4 + 2 * 16 + 2 * 57 * 4)
    # The transfer takes two bytes for each, as one side needs no more.
    assert training.element_bytes("model.layers.1.mlp.gate.weight") == 2


def test_only_the_first_stage_of_glm_has_the_embedding_and_only_the_last_the_head() -> None:
    stages = vllm_sharding(CORRECTED, RolloutLayout(pp=3), dtype="bfloat16")
    named = [{"model.embed_tokens.weight", "lm_head.weight"} & {*stages.table(at)} for at in (0, 2)]
    assert named == [{"model.embed_tokens.weight"}, {"lm_head.weight"}]


def test_known_models_take_two_bytes_a_weight_on_both_sides() -> None:
    model = read_description(str(SHIPPED / "Qwen2.5-7B"))
    layout = TrainLayout(tp=4, dp=2)
    sharding = megatron_sharding(model, layout, dtype="bfloat16")
    (found,) = set(sharding.held_bytes())
    # Norms lie whole on every rank: 57 of 3584.
    assert found == 2 * (QWEN_7B + 3 * 57 * 3584) // 4
    rollout = vllm_sharding(model, RolloutLayout(tp=1), dtype="bfloat16")
    assert rollout.held_bytes() == (2 * QWEN_7B,)


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
    description = read_description(str(SHIPPED / model), to_plan=True)
    found = cache_sizes(description, RolloutLayout(tp=tp), "bfloat16")
    assert found == CacheSizes(per_token=expected)
    # A sequence takes whole blocks of 128 tokens, and the engine keeps one more.
    assert [found.of_sequence(each) for each in (100, 129)] == [128 * expected, 256 * expected]
    assert found.smallest(129) == 384 * expected
    small = cache_sizes(description, RolloutLayout(tp=tp), "bfloat16", block_tokens=16)
    assert small.smallest(100) == 128 * expected


@pytest.mark.parametrize(
    ("family", "tied"),
    [*product(("qwen2", "qwen3", "qwen3_moe"), (True, False)), ("glm4_moe", False)],
)
def test_logical_tensors_are_those_that_transformers_writes(
    family: str, tied: bool, random_model_of: Callable[..., Path]
) -> None:
    folder = random_model_of(family, tied)
    described = logical_shapes(read_description(str(folder)))
    filed = load_file(folder / "model.safetensors")
    assert described == {name: tensor.shape for name, tensor in filed.items()}
    assert ("lm_head.weight" in described) == (not tied)
