"""Import of LoRA adapters from MindSpeed-RL and verl."""

from collections.abc import Sequence
from typing import Any

import pytest
from mindspeed_rl_files import DAPO, DEEPSEEK_V3, DENSE, PPO, imported, of

from mindrl.config.load import load_run_config
from mindrl.config.lora import LINEARS, LoRAConfig
from mindrl.config.text import nested
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.migrate.mapped import Import, Mapped
from mindrl.migrate.verl import import_verl

FUSED = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
DENSE_LINEARS = LINEARS[:7]
TARGETS, SHARED = "megatron_training.lora_target_modules", "rl_config.share_backbone"
# The page on LoRA of MindSpeed-RL, with the section and the key that its classes have.
PAGE: dict[str, Any] = {
    "megatron_training.lora_r": 128,
    "megatron_training.lora_alpha": 128,
    "megatron_training.lora_fusion": True,
    TARGETS: FUSED,
    "megatron_training.lora_ckpt_filter": True,
    SHARED: True,
}
MODEL = "actor_rollout_ref.model"
VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 8,
    f"{MODEL}.path": "models/Qwen2.5-7B",
    "trainer.total_training_steps": 10,
}


def adapters(values: Import) -> LoRAConfig:
    run = load_run_config(nested(values.values))
    assert findings(run) == []
    return run.actor_config.lora


def only_refused(values: Import) -> Mapped:
    (found,) = values.refused
    return found


def test_the_run_of_their_page_is_one_of_ours() -> None:
    result = imported(PAGE)
    assert result.refused == ()
    assert adapters(result) == LoRAConfig(r=128, alpha=128.0, target_modules=DENSE_LINEARS)
    kinds = {key: of(result, key).kind for key in PAGE}
    renamed = ("lora_r", "lora_alpha", "lora_target_modules")
    assert kinds == {
        **{f"megatron_training.{key}": "renamed" for key in renamed},
        **{f"megatron_training.lora_{key}": "ignored" for key in ("fusion", "ckpt_filter")},
        SHARED: "derived",
    }
    assert of(result, TARGETS).note == (
        "MindSpeed-RL has one LoRA matrix A for a fused layer; mindrl has one for each matrix in "
        "it, as PEFT has"
    )


def test_rank_and_alpha_that_are_left_out_are_theirs() -> None:
    result = imported({"actor_config.lora_target_modules": ["linear_fc2", "linear_qkv"]})
    names = ("down_proj", "q_proj", "k_proj", "v_proj")
    assert adapters(result) == LoRAConfig(r=8, alpha=16.0, target_modules=names)


def test_one_name_stands_for_a_list_of_it() -> None:
    assert adapters(imported({TARGETS: "linear_proj"})).target_modules == ("o_proj",)


@pytest.mark.parametrize(
    ("query_rank", "names"),
    [
        (1536, ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj")),
        (None, ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")),
    ],
)
def test_latent_attention_has_other_layers_under_the_same_name(
    query_rank: int | None, names: Sequence[str]
) -> None:
    asked = ["linear_qkv", *(["linear_qb"] if query_rank else []), "linear_kvb", "linear_proj"]
    result = imported({TARGETS: asked}, DEEPSEEK_V3 | {"q_lora_rank": query_rank})
    assert result.refused == ()
    assert tuple(result.values["actor_config.lora.target_modules"]) == names


@pytest.mark.parametrize(
    ("asked", "left", "words"),
    [
        (
            ["linear_qkv", "output_layer"],
            ["q_proj", "k_proj", "v_proj"],
            "if dropped, only the other layers get adapters",
        ),
        (["output_layer"], None, "if dropped, all weights are trained"),
    ],
)
def test_a_layer_that_can_have_none_is_refused_with_those_that_can(
    asked: list[str], left: list[str] | None, words: str
) -> None:
    result = imported({TARGETS: asked})
    known = "linear_qkv, linear_proj, linear_fc1, linear_fc2"
    assert only_refused(result) == Mapped(
        TARGETS,
        "refused",
        {"actor_config.lora.target_modules": left} if left else {},
        f"output_layer: use {known}; {words}",
    )
    assert result.values.get("actor_config.lora.r") == (8 if left else None)


def test_without_layers_the_other_keys_say_nothing() -> None:
    result = imported({"megatron_training.lora_r": 4, SHARED: False})
    assert adapters(result) == LoRAConfig()
    assert of(result, "megatron_training.lora_r").note == "no effect without lora_target_modules"
    assert of(result, SHARED).note == "off, the same in mindrl"


@pytest.mark.parametrize("rank", [0, -1, 2.5, True])
def test_a_rank_is_a_whole_number_from_1(rank: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        imported({"actor_config.lora_r": rank})
    assert str(refusal.value) == f"actor_config.lora_r={rank!r} must be a whole number from 1"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (PAGE, "derived", "the reference is the actor without its adapters"),
        (PAGE | {SHARED: False}, "ignored", "always the actor without its adapters"),
        (PAGE | DAPO, "ignored", "DAPO has no reference"),
        ({SHARED: True}, "refused", "true requires lora_target_modules"),
    ],
)
def test_the_reference_shares_the_weights_of_an_actor_with_adapters(
    changes: dict[str, Any], kind: str, words: str
) -> None:
    found = of(imported(changes), SHARED)
    assert (found.kind, words in found.note) == (kind, True)


def test_a_critic_has_no_adapters_here() -> None:
    shared = imported(PPO | {TARGETS: FUSED})
    assert only_refused(shared).key == TARGETS
    assert only_refused(shared).note == (
        "set for the critic too, but mindrl trains all weights of the critic; if dropped, only the "
        "actor has adapters"
    )
    assert adapters(shared).target_modules == DENSE_LINEARS
    own = "critic_config.lora_target_modules"
    asked = imported(PPO | {own: FUSED, "critic_config.lora_r": 4})
    assert only_refused(asked).key == own
    assert adapters(asked) == LoRAConfig()
    of_actor = imported(PPO | {"actor_config.lora_target_modules": FUSED})
    assert (of_actor.refused, adapters(of_actor).r) == ((), 8)


def test_the_name_of_a_key_on_their_page_is_answered_with_that_of_their_class() -> None:
    with pytest.raises(ConfigError, match=r"the nearest is \w+\.lora_ckpt_filter$"):
        imported({"megatron_training.lora_filter": True}, DENSE)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"lora_rank": 32, "lora_alpha": 64, "target_modules": "all-linear"},
            LoRAConfig(r=32, alpha=64.0),
        ),
        (
            {"lora_rank": 8, "target_modules": ["q_proj", "v_proj"], "exclude_modules": None},
            LoRAConfig(r=8, alpha=16.0, target_modules=("q_proj", "v_proj")),
        ),
        (
            {"lora_rank": 16, "lora_adapter_path": "sft/adapter", "target_modules": "o_proj"},
            LoRAConfig(r=16, target_modules=("o_proj",), load="sft/adapter"),
        ),
        ({"lora_rank": 0, "lora_alpha": 64, "lora.rank": 0, "lora.alpha": 4}, LoRAConfig()),
        (
            {"lora.rank": 16, "lora.type": "canonical_lora", "lora.dropout": 0.1},
            LoRAConfig(r=16, alpha=32.0, dropout=0.1, target_modules=DENSE_LINEARS),
        ),
        (
            {"lora.rank": 16, "lora.alpha": 8, "lora.target_modules": ["linear_q", "linear_fc1"]},
            LoRAConfig(r=16, alpha=8.0, target_modules=("q_proj", "gate_proj", "up_proj")),
        ),
    ],
)
def test_both_families_of_verls_keys_are_read(keys: dict[str, Any], expected: LoRAConfig) -> None:
    result = import_verl(VERL | {f"{MODEL}.{key}": value for key, value in keys.items()})
    assert result.refused == ()
    told = {each.key: each.kind for each in result.mapped}
    assert "open" not in {told[f"{MODEL}.{key}"] for key in keys}
    assert adapters(result) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target_modules", ["q_proj", "lm_head"]),
        ("target_modules", r".*\.q_proj"),
        ("exclude_modules", ["o_proj"]),
        ("lora.type", "dora"),
        ("lora.target_modules", ["*.layers.0.*.linear_qkv"]),
        ("lora.exclude_modules", ["linear_proj"]),
    ],
)
def test_what_verl_chooses_layer_by_layer_is_refused(key: str, value: object) -> None:
    rank = "lora.rank" if key.startswith("lora.") else "lora_rank"
    given = {f"{MODEL}.{rank}": 8, f"{MODEL}.{key}": value}
    assert only_refused(import_verl(VERL | given)).key == f"{MODEL}.{key}"


def test_a_folder_of_verls_without_a_rank_leaves_the_rank_to_the_user() -> None:
    result = import_verl(VERL | {f"{MODEL}.lora_adapter_path": "sft/adapter"})
    assert adapters(result) == LoRAConfig(r=8, load="sft/adapter")
    assert of(result, f"{MODEL}.lora_rank").kind == "open"


def test_what_verl_needs_for_speed_with_adapters_is_ignored() -> None:
    keys = {
        f"{MODEL}.lora_rank": 8,
        f"{MODEL}.use_shm": True,
        "actor_rollout_ref.rollout.layered_summon": True,
        "actor_rollout_ref.rollout.load_format": "safetensors",
    }
    kinds = [of(import_verl(VERL | keys), key).kind for key in keys]
    assert kinds == ["renamed", *["ignored"] * 3]


def test_the_critic_of_verl_has_no_adapters_here_either() -> None:
    keys = {f"{MODEL}.lora_rank": 8, "critic.model.lora_rank": 8}
    assert import_verl(VERL | keys).refused == ()
    with_critic = import_verl(VERL | keys | {"algorithm.adv_estimator": "gae"})
    assert only_refused(with_critic).key == "critic.model.lora_rank"
