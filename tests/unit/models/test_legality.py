"""What a layout demands of a model's sizes, each demand with its whole message."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.description import (
    MlaDescription,
    ModelDescription,
    MoeDescription,
    read_description,
)
from mindrl.rollout.vllm.legality import vllm_findings
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.legality import megatron_findings
from mindrl.training.megatron.sharding import megatron_sharding

MODELS = Path(__file__).parents[3] / "configs" / "models"
TRAINING = {
    "tp": "train.tp",
    "cp": "train.cp",
    "pp": "train.pp",
    "vpp": "train.vpp",
    "ep": "train.ep",
    "etp": "train.etp",
    "layers_per_chunk": "train.layers",
}
ROLLOUT = {"tp": "infer.tp", "pp": "infer.pp", "ep": "infer.ep"}


def described(name: str, **changes: Any) -> ModelDescription:
    return replace(read_description(str(MODELS / name), to_plan=True), **changes)


def trains(model: ModelDescription, **sizes: Any) -> list[str]:
    return [str(each) for each in megatron_findings(model, TrainLayout(**sizes), TRAINING)]


def rolls_out(model: ModelDescription, **sizes: int) -> list[str]:
    return [str(each) for each in vllm_findings(model, RolloutLayout(**sizes), ROLLOUT)]


@pytest.mark.parametrize(
    ("name", "training", "rollout"),
    [
        ("Qwen2.5-7B", {"tp": 4, "pp": 2, "vpp": 7, "dp": 2}, {"tp": 2, "pp": 3}),
        # Four key-value heads for eight ranks: two ranks share a head, on both sides.
        ("Qwen3-30B-A3B", {"tp": 8, "dp": 2, "ep": 8, "etp": 2}, {"tp": 8, "dp": 2, "ep": 16}),
        (
            "DeepSeek-V3",
            {"tp": 4, "dp": 8, "pp": 2, "ep": 32, "layers_per_chunk": (31, 30)},
            # 256 experts over 24 ranks: vLLM deals 10 or 11 to each.
            {"tp": 8, "dp": 3, "ep": 24},
        ),
    ],
)
def test_a_model_and_the_layouts_that_people_run_it_with_have_no_findings(
    name: str, training: dict[str, Any], rollout: dict[str, int]
) -> None:
    model = described(name)
    assert trains(model, **training) == []
    assert rolls_out(model, **rollout) == []


def test_28_heads_are_not_cut_by_8() -> None:
    model = described("Qwen2.5-7B")
    rest = "=8 must divide num_attention_heads=28; nearest: 7, 14"
    assert trains(model, tp=8) == [f"train.tp{rest}"]
    assert rolls_out(model, tp=8) == [f"infer.tp{rest}"]


def test_key_value_heads_are_cut_or_copied_but_not_both() -> None:
    model = described("Qwen2.5-7B", num_attention_heads=24, intermediate_size=24 * 100)
    rest = "must divide num_key_value_heads=4 or be a multiple of it; nearest: "
    assert trains(model, tp=6) == [f"train.tp=6 {rest}4, 8"]
    assert trains(model, tp=3) == [f"train.tp=3 {rest}2, 4"]
    assert rolls_out(model, tp=6)[0] == f"infer.tp=6 {rest}4, 8"


def test_context_parallel_ranks_share_the_heads_of_a_tensor_parallel_rank() -> None:
    model = described("Qwen2.5-7B")
    # 28 heads in 4 groups: with tp=2, 14 heads in 2 groups.
    assert trains(model, cp=4) == trains(model, cp=7, tp=4) == trains(model, tp=2, cp=2) == []
    assert trains(model, tp=2, cp=4) == [
        "train.cp=4 must divide the attention heads of a tensor-parallel rank=14; nearest: 2, 7"
    ]
    assert trains(model, tp=2, cp=7) == [
        (
            "train.cp=7 must divide the key-value heads of a tensor-parallel rank, 2, or be a "
            "multiple of them; nearest: 2"
        )
    ]


def test_heads_of_odd_size_may_leave_rows_of_the_fused_qkv_that_16_ranks_cannot_share() -> None:
    # 16 query and 2 x 1 key-value heads of 3: 54 rows. vLLM gives the whole head to every rank.
    sizes = {"num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 3}
    model = described("Qwen2.5-7B", **sizes)
    assert trains(model, tp=16) == [
        "train.tp=16 must divide the rows of the fused QKV=54; nearest: 9, 18"
    ]
    assert rolls_out(model, tp=16) == []


def test_the_width_of_a_dense_layer_counts_only_where_there_are_dense_layers() -> None:
    dense = described("Qwen2.5-7B", intermediate_size=1022)
    assert trains(dense, tp=4) == ["train.tp=4 must divide intermediate_size=1022; nearest: 2, 7"]
    experts = described("Qwen3-30B-A3B", intermediate_size=1022)
    assert trains(experts, tp=4) == []
    assert experts.moe is not None
    mixed = replace(experts, moe=replace(experts.moe, dense_layers=frozenset({0})))
    assert rolls_out(mixed, tp=4) == [
        "infer.tp=4 must divide intermediate_size=1022; nearest: 2, 7"
    ]


def test_shared_experts_are_cut_by_the_tensor_parallel_size_on_both_sides() -> None:
    model = described("DeepSeek-V3")
    assert model.moe is not None
    odd = replace(model, moe=replace(model.moe, shared_intermediate_size=2050))
    rest = "=4 must divide the width of the shared experts=2050; nearest: 2, 5"
    assert trains(odd, tp=4) == [f"train.tp{rest}"]
    assert rolls_out(odd, tp=4, dp=2, ep=8) == [f"infer.tp{rest}"]


def test_training_deals_experts_evenly_and_the_rollout_at_least_one_to_each_rank() -> None:
    model = described("Qwen3-30B-A3B")
    assert trains(model, dp=12, ep=12) == [
        "train.ep=12 must divide num_experts=128; nearest: 8, 16"
    ]
    assert rolls_out(model, dp=12, ep=12) == []
    assert rolls_out(model, dp=256, ep=256) == [
        "infer.ep=256 must be at most num_experts=128; nearest: 128"
    ]


def test_experts_that_are_cut_are_cut_evenly() -> None:
    model = described("Qwen3-30B-A3B", num_attention_heads=40, num_key_value_heads=20)
    assert trains(model, dp=5, etp=5) == [
        "train.etp=5 must divide moe_intermediate_size=768; nearest: 4, 6"
    ]
    assert rolls_out(model, tp=5) == [
        "infer.tp=5 must divide vocab_size in whole 64s=151936; nearest: 4, 8",
        "infer.tp=5 must divide moe_intermediate_size=768; nearest: 4, 6",
    ]
    # With expert parallelism the rollout keeps them whole.
    assert rolls_out(replace(model, vocab_size=320), tp=5, ep=5) == []


def test_a_model_without_experts_takes_no_expert_sizes() -> None:
    model = described("Qwen2.5-7B")
    assert trains(model, tp=4, ep=2, etp=2) == [
        "train.ep=2 needs a model with experts; use 1",
        "train.etp=2 needs a model with experts; use 1",
    ]
    assert rolls_out(model, tp=2, ep=2) == ["infer.ep=2 needs a model with experts; use 1"]


def test_the_vocabulary_of_the_rollout_is_cut_in_its_padded_length() -> None:
    # 100 tokens become 128 rows whatever the ranks, and 105 for 7 ranks in training.
    sizes = {"vocab_size": 100, "num_key_value_heads": 28, "intermediate_size": 700}
    model = described("Qwen2.5-7B", **sizes)
    assert rolls_out(model, tp=7) == [
        "infer.tp=7 must divide vocab_size in whole 64s=128; nearest: 4, 8"
    ]
    assert trains(model, tp=7) == []


def test_stages_cut_the_layers_evenly_or_by_a_list() -> None:
    model = described("DeepSeek-V3")
    assert trains(model, pp=8) == [
        "train.pp=8 must divide num_hidden_layers=61; nearest: 1, 61; or give train.layers"
    ]
    assert trains(model, pp=2, vpp=3) == [
        (
            "train.pp times train.vpp=6 must divide num_hidden_layers=61; nearest: 1, 61; "
            "or give train.layers"
        )
    ]
    assert trains(model, pp=4, layers_per_chunk=(16, 15, 15, 15)) == []
    for layers in ((31, 30), (16, 15, 15, 16), (61, 0, 0, 0)):
        assert trains(model, pp=4, layers_per_chunk=layers) == [
            (
                f"train.layers={','.join(map(str, layers))} must be 4 numbers from 1 with "
                "the sum num_hidden_layers=61"
            )
        ]


def test_virtual_stages_need_two_real_ones() -> None:
    assert trains(described("Qwen2.5-7B"), vpp=2) == [
        "train.vpp=2 needs train.pp of 2 or more, found 1"
    ]


def test_the_rollout_has_no_more_stages_than_the_model_has_layers() -> None:
    model = described("Qwen2.5-7B")
    assert rolls_out(model, pp=27) == []
    assert rolls_out(model, pp=29) == [
        "infer.pp=29 must be at most num_hidden_layers=28; nearest: 28"
    ]


def test_megatron_cuts_the_rows_of_the_latent_projections_and_vllm_does_not() -> None:
    model = described("DeepSeek-V3")
    # 512 latent and 64 rotary rows.
    assert trains(model, tp=128) == [
        "train.tp=128 must divide kv_lora_rank + qk_rope_head_dim=576; nearest: 96, 144"
    ]
    assert rolls_out(model, tp=128) == []
    assert model.mla is not None
    small = replace(model, mla=replace(model.mla, q_lora_rank=1000))
    assert trains(small, tp=16) == ["train.tp=16 must divide q_lora_rank=1000; nearest: 10, 20"]


SIZE = st.sampled_from([1, 2, 3, 4, 6])


@st.composite
def models(draw: st.DrawFn) -> ModelDescription:
    """Draw sizes without regard to any layout."""
    groups = draw(st.sampled_from([1, 2, 3, 4]))
    moe = MoeDescription(
        num_experts=draw(st.sampled_from([4, 6, 8])),
        num_experts_per_tok=2,
        intermediate_size=draw(st.sampled_from([4, 6, 12])),
        shared_intermediate_size=draw(st.sampled_from([0, 4, 6])),
        dense_layers=draw(st.sampled_from([frozenset(), frozenset({0})])),
    )
    mla = MlaDescription(
        q_lora_rank=draw(st.sampled_from([None, 4, 6])),
        kv_lora_rank=draw(st.sampled_from([3, 4])),
        qk_nope_head_dim=2,
        qk_rope_head_dim=1,
        v_head_dim=2,
    )
    return ModelDescription(
        model_type="any",
        num_hidden_layers=draw(st.integers(2, 4)),
        hidden_size=4,
        intermediate_size=draw(st.sampled_from([4, 6, 12])),
        num_attention_heads=groups * draw(st.sampled_from([1, 2, 3, 6])),
        num_key_value_heads=groups,
        head_dim=draw(st.sampled_from([1, 2, 3])),
        vocab_size=draw(st.integers(6, 30)),
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=64,
        tie_word_embeddings=draw(st.booleans()),
        moe=draw(st.sampled_from([None, moe])),
        mla=draw(st.sampled_from([None, mla])),
    )


def can_be_made(sharding: Any, *arguments: Any) -> bool:
    """Try to make the tables, which assert that every cut is even."""
    try:
        dict(sharding(*arguments, dtype="bfloat16").shards)
    except AssertionError:
        return False
    return True


@settings(deadline=None, max_examples=300)
@given(models(), SIZE, SIZE, SIZE, SIZE)
def test_a_training_layout_without_findings_has_tables(
    model: ModelDescription, tp: int, pp: int, ep: int, etp: int
) -> None:
    layout = TrainLayout(tp=tp, pp=pp, dp=ep * etp, ep=ep, etp=etp)
    if list(megatron_findings(model, layout, TRAINING)) == []:
        assert can_be_made(megatron_sharding, model, layout)


@settings(deadline=None, max_examples=300)
@given(models(), SIZE, SIZE, st.booleans())
def test_a_rollout_layout_without_findings_has_tables(
    model: ModelDescription, tp: int, pp: int, shared: bool
) -> None:
    layout = RolloutLayout(tp=tp, pp=pp, ep=tp if shared else 1)
    if list(vllm_findings(model, layout, ROLLOUT)) == []:
        assert can_be_made(vllm_sharding, model, layout)
