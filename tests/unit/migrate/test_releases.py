"""Detection of a file's MindSpeed-RL release, and import of added and removed keys."""

from typing import Any

import pytest
from mindspeed_rl_files import EXPERTS, imported, of

from mindrl.config.text import nested
from mindrl.migrate.file import looks_like, releases_of, their_run
from mindrl.migrate.keys import KEYS, RELEASES

LATENT_OF_2_2 = EXPERTS | {
    "multi_head_latent_attention": True,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "rope_scaling_beta_fast": 32,
    "rope_scaling_beta_slow": 1,
}
LATENT_OF_2_3 = EXPERTS | {
    "multi_latent_attention": True,
    "qk_pos_emb_head_dim": 64,
    "qk_head_dim": 128,
    "moe_ffn_hidden_size": 2048,
    "moe_router_num_groups": 8,
}


def release(changes: dict[str, Any], model: dict[str, Any]) -> str:
    values = {"megatron_training.model": "m", "megatron_training.stage": "ray_grpo"} | changes
    return their_run(nested(values), {"m": model}).release


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        (0, (147, 48, 17, 9)),
        (1, (157, 54, 20, 9)),
        (2, (167, 88, 26, 12)),
        # The class of 2.3 spells variable_seq_lengths without its s; its files have both letters.
        (3, (168 + 1, 88, 26, 12)),
        (4, (174, 106, 26, 12)),
    ],
)
def test_the_tables_have_as_many_keys_as_the_four_classes_of_each_release(
    number: int, counts: tuple[int, ...]
) -> None:
    # No class has the keys that stand in files of 2.0 only, and two of the days before 2.2.
    of_2_2 = {"role.ref_model_iter", "generate_config.chunked_prefill_for_mla"}
    left_over = of_2_2 | {key for key in KEYS if releases_of(key) == range(1)}
    assert len(left_over) == 2 + 8
    there = {key for key in KEYS.keys() - left_over if number in releases_of(key)}
    sections = ("role.", "rl_config.", "generate_config.", "msprobe_config.")
    named = [{key.split(".")[1] for key in there if key.startswith(each)} for each in sections]
    assert tuple(map(len, named)) == counts


@pytest.mark.parametrize(
    ("changes", "model", "named"),
    [
        ({}, {}, "2.0 or later"),
        ({"rl_config.shuffle_minibatch": False}, {}, "2.0"),
        ({"rl_config.enable_sharding_validate": True}, {}, "2.0 to 2.1"),
        ({"rl_config.use_dynamic_bsz": True}, {}, "2.1 or later"),
        ({"rl_config.use_dynamic_bsz": True}, LATENT_OF_2_2, "2.1 to 2.2"),
        ({"actor_config.cp-attention-mask-type": "causal"}, {}, "2.2"),
        ({"rl_config.critic_resource.num_npus": 8}, {}, "2.2 or later"),
        ({"megatron_training.npu_deterministic": True}, LATENT_OF_2_3, "2.3 or later"),
        ({"rl_config.multi_turn_enable": None}, {}, "later than 2.3"),
        (
            {"megatron_training.npu_deterministic": True},
            {"n_group": 8},
            "of mixed releases: n_group was last in 2.2, npu_deterministic is new in 2.3",
        ),
    ],
)
def test_a_file_looks_like_the_releases_that_have_all_its_keys(
    changes: dict[str, Any], model: dict[str, Any], named: str
) -> None:
    assert release(changes, model) == named


def test_a_file_without_keys_may_be_of_any_release() -> None:
    assert (looks_like([]), RELEASES[0]) == ("2.0 or later", "2.0")


def test_keys_of_2_0_that_no_code_read_are_ignored_with_those_that_it_reads() -> None:
    result = imported({"rl_config.shuffle_minibatch": True, "rl_config.ref_micro_batch_size": 1})
    shuffled = of(result, "rl_config.shuffle_minibatch")
    assert (shuffled.kind, "it reads shuffle_mini_batch" in shuffled.note) == (
        "ignored",
        True,
    )
    assert "micro_batch_size" in of(result, "rl_config.ref_micro_batch_size").note
    assert "rl_config.shuffle_mini_batch" not in result.values


def test_the_old_name_of_deterministic_computing_sets_the_new_one() -> None:
    key = "megatron_training.use_deter_comp"
    entry = of(imported({key: True}), key)
    assert (entry.kind, entry.sets) == ("renamed", {"megatron_training.npu_deterministic": True})
    both = imported({key: True, "megatron_training.npu_deterministic": False})
    assert both.values["megatron_training.npu_deterministic"] is False
    assert of(both, key).note == "overridden by npu_deterministic"


def test_2_0_trains_in_float32_where_it_is_not_told_otherwise() -> None:
    precision = "megatron_training.bf16"
    assert precision not in imported({}).values
    old = {"rl_config.shuffle_minibatch": False}
    assert imported(old).values[precision] is False
    assert imported(old | {precision: True}).values[precision] is True


@pytest.mark.parametrize("model", [LATENT_OF_2_2, LATENT_OF_2_3])
def test_sizes_of_latent_attention_and_experts_are_known_by_their_old_and_new_names(
    model: dict[str, Any],
) -> None:
    result = imported({}, model)
    for key in model.keys() - EXPERTS.keys():
        assert of(result, f"model.dense.{key}").note == "read from the model's config.json"
