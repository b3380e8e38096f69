"""The transfer of weights between gloo ranks: every slice arrives, and every fault is named."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from forked_workers import ForkedWorkers

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import DType
from mindrl.models.description import MlaDescription, ModelDescription, MoeDescription
from mindrl.models.gated_delta import GatedDeltaNet
from mindrl.models.sharding import Sharding, elsewhere
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.megatron.sharding import megatron_sharding

DENSE = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=4,
    hidden_size=24,
    intermediate_size=48,
    num_attention_heads=12,
    num_key_value_heads=6,
    head_dim=4,
    vocab_size=100,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)
MOE = replace(
    DENSE,
    model_type="qwen3_moe",
    attention_bias=False,
    qk_norm=True,
    num_key_value_heads=2,
    moe=MoeDescription(
        num_experts=8, num_experts_per_tok=2, intermediate_size=16, norm_topk_prob=True
    ),
)
DEEPSEEK = replace(
    MOE,
    model_type="deepseek_v3",
    qk_norm=False,
    num_key_value_heads=12,
    moe=MoeDescription(
        num_experts=8,
        num_experts_per_tok=2,
        intermediate_size=16,
        shared_intermediate_size=16,
        score_correction_bias=True,
        dense_layers=frozenset({0}),
    ),
    mla=MlaDescription(
        q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4
    ),
)
DELTA = replace(
    DENSE,
    model_type="qwen3_5_text",
    attention_bias=False,
    qk_norm=True,
    partial_rotary_factor=0.5,
    delta=GatedDeltaNet(
        layers=(0, 1, 2), key_heads=2, value_heads=4, key_width=3, value_width=5, convolution=4
    ),
)
BUCKET_BYTES = 16 << 10


def shardings(
    model: ModelDescription,
    source: TrainLayout,
    target: RolloutLayout,
    dtypes: tuple[DType, DType] = ("float32", "float32"),
) -> tuple[Sharding, Sharding]:
    return (
        megatron_sharding(model, source, dtype=dtypes[0]),
        vllm_sharding(model, target, dtype=dtypes[1]),
    )


def transfer(
    workers: ForkedWorkers,
    model: ModelDescription,
    ranks: int,
    pairs: Sequence[tuple[Sharding, Sharding]],
) -> None:
    wrong = workers.run("transfer_probe:transferred", model, list(pairs), BUCKET_BYTES, ranks=ranks)
    assert wrong == [[[]] * len(pairs)] * ranks


T, R = TrainLayout, RolloutLayout


def test_dense_weights_arrive_bit_by_bit_on_8_ranks(forked_workers: ForkedWorkers) -> None:
    transfer(
        forked_workers,
        DENSE,
        8,
        [
            shardings(DENSE, T(tp=2, pp=2, dp=2), R(tp=1, dp=8)),
            shardings(DENSE, T(tp=2, dp=4), R(tp=2, dp=4), ("float32", "bfloat16")),
            shardings(DENSE, T(pp=4, dp=2), R(tp=2, pp=2, dp=2), ("bfloat16", "float32")),
        ],
    )


def test_experts_and_latent_attention_arrive_bit_by_bit_on_4_ranks(
    forked_workers: ForkedWorkers,
) -> None:
    transfer(
        forked_workers,
        DEEPSEEK,
        4,
        [
            shardings(DEEPSEEK, T(dp=4, ep=4), R(tp=4), ("bfloat16", "bfloat16")),
            shardings(DEEPSEEK, T(tp=2, pp=2, etp=2), R(tp=2, dp=2, ep=4), ("float32", "bfloat16")),
            shardings(DEEPSEEK, T(tp=4, ep=2, etp=2), R(tp=1, dp=4)),
        ],
    )


def test_gated_delta_nets_arrive_bit_by_bit_from_stages_and_parts_of_heads(
    forked_workers: ForkedWorkers,
) -> None:
    pairs = [
        (archon_sharding(DELTA, train), vllm_sharding(DELTA, rollout, dtype=dtype))
        for train, rollout, dtype in (
            (T(tp=2, pp=2), R(tp=1, dp=4), "float32"),
            (T(tp=2, pp=2), R(tp=2, dp=2), "bfloat16"),
            (T(dp=2, tp=2), R(tp=2, dp=2), "float32"),
        )
    ]
    transfer(forked_workers, DELTA, 4, pairs)


def test_training_and_rollout_may_be_on_different_ranks(forked_workers: ForkedWorkers) -> None:
    source, target = shardings(MOE, T(tp=2, dp=1, ep=2), R(tp=1, dp=2, ep=2))
    pair = (
        elsewhere(source, first_rank=0, world_size=4),
        elsewhere(target, first_rank=2, world_size=4),
    )
    transfer(forked_workers, MOE, 4, [pair])


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("kind", "speakers", "messages"),
    [
        (
            "other plan",
            (0, 3),
            ("rank 2 and rank 0 have different reshard plans; no weights were moved",),
        ),
        (
            "silent from the start",
            (0, 3),
            ("rank 1 did not answer within 3 s; no weights were moved",),
        ),
        ("silent later", (0,), ("waited 3 s for bucket", "; rank 1 did not get this far")),
        (
            "damaged",
            (1,),
            (f"{Q_PROJ}[0:8, 0:24] differs between rank 1 and rank 0",),
        ),
    ],
)
def test_a_fault_ends_the_transfer_with_the_names_of_ranks(
    forked_workers: ForkedWorkers,
    kind: str,
    speakers: tuple[int, ...],
    messages: tuple[str, ...],
) -> None:
    pair = shardings(DENSE, T(tp=2, dp=2), R(tp=1, dp=4))
    said = forked_workers.run("transfer_probe:failure", DENSE, pair, kind, ranks=4)
    for speaker in speakers:
        text, seconds = said[speaker]
        assert all(message in text for message in messages), text
        assert seconds < 9


@pytest.mark.parametrize(("verify", "noticed"), [("first", False), ("always", True)])
def test_weights_are_compared_behind_the_first_reshard_alone_or_behind_each(
    forked_workers: ForkedWorkers, verify: str, noticed: bool
) -> None:
    pair = shardings(DENSE, T(), R())
    (said,) = forked_workers.run("transfer_probe:second_damage", DENSE, pair, verify)
    assert ("self_attn.q_proj.weight" in said) == noticed
