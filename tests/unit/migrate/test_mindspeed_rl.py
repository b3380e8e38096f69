"""Import of each MindSpeed-RL key, and pitfalls between the two formats."""

from typing import Any

import pytest
from mindspeed_rl_files import DAPO, PPO, imported, of

from mindrl.config.load import load_run_config
from mindrl.errors import ConfigError
from mindrl.migrate.keys import DEFAULTS, DOTTED, OF_ROLE

SAMPLES: dict[str, Any] = {
    "verifier_function": ["math_17k_acc"],
    "verifier_weight": [1.0],
    "stage": "ray_grpo",
    "adv_estimator": "group_norm",
}


def test_every_key_is_accounted_for_and_gets_a_reason_where_it_is_not_taken_over() -> None:
    for key in (*(f"actor_config.{key}" for key in sorted(OF_ROLE)), *sorted(DOTTED)):
        value = SAMPLES.get(key.rpartition(".")[2], 1)
        entry = of(imported({key: value}), key)
        assert entry.note or entry.kind == "honoured", key
        assert entry.note or entry.sets, f"{key} is honoured and sets nothing"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("rl_config.clip_ration", "rl_config.clip_ratio"),
        ("actor_config.tensor_parallel_size", "actor_config.tensor_model_parallel_size"),
        ("generate_config.token_collects", "generate_config.eplb_token_collects"),
        ("generate_config.sampling_config.topp", "generate_config.sampling_config.top_p"),
        ("megatron_training.clip_ratio", "rl_config.clip_ratio"),
        ("rl_config.lr", "megatron_training.lr"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        imported({key: 1})
    assert str(refusal.value) == f"{key} is not a key of MindSpeed-RL; the nearest is {nearest}"


def test_an_unknown_section_is_refused_with_those_that_are_read() -> None:
    with pytest.raises(ConfigError) as refusal:
        imported({"megatron_config.seed": 1})
    assert str(refusal.value) == (
        "megatron_config.seed: unknown section megatron_config; sections are "
        "megatron_training, actor_config, critic_config, rl_config, generate_config, "
        "profiler_config, msprobe_config"
    )


def test_unknown_keys_are_named_all_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        imported({"rl_config.a": 1, "rl_config.b": 1})
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == [
        "rl_config.a",
        "rl_config.b",
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rl_config.max_prompt_length", "long", "='long' must be a whole number from 1"),
        ("actor_config.pipeline_model_parallel_size", 0, "=0 must be a whole number from 1"),
        ("rl_config.partial_rollout_max_split", "x", "='x' must be a whole number"),
        ("rl_config.filter_groups_max_batches", "x", "='x' must be a whole number"),
        ("rl_config.verifier_function", "base_acc", "='base_acc' must be a list of names"),
        ("rl_config.verifier_weight", ["1"], "=['1'] must be a list of numbers"),
        ("actor_config.num_layer_list", "7;8", "='7;8' must be whole numbers with commas between"),
        ("actor_config.lr", b"x", "=b'x' must be text, a number, true, false or a list of those"),
        ("megatron_training.split", "all", "='all' must be shares with commas between them"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_words(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        imported({key: value})
    assert str(refusal.value).startswith(f"{key}{message}")


def test_a_number_in_quotes_is_a_number_and_the_report_says_so() -> None:
    entry = of(imported({"actor_config.lr": "1e-6"}), "actor_config.lr")
    assert entry.sets == {"actor_config.lr": 1e-6}
    assert entry.note == "was text in the file, is a number in mindrl"


def test_a_key_with_dashes_is_the_one_with_underscores() -> None:
    assert imported({"actor_config.min-lr": 1e-7}).values["actor_config.min_lr"] == 1e-7


def test_the_later_section_wins_and_the_other_one_is_reported() -> None:
    result = imported({"megatron_training.lr": 1e-5, "actor_config.lr": 2e-6})
    assert result.values["actor_config.lr"] == 2e-6
    assert of(result, "megatron_training.lr").note == "overridden by actor_config.lr"


def test_a_default_that_differs_from_ours_is_written_out() -> None:
    result = imported({"rl_config.n_samples_per_prompt": "absent"})
    assert result.values["rl_config.n_samples_per_prompt"] == 1
    assert result.values["generate_config.sampling_config.temperature"] == 0.2
    assert result.values["generate_config.sampling_config.top_k"] == 50
    assert result.values["rl_config.init_kl_coef"] == 0.01
    assert result.values["actor_config.lr_decay_style"] == "linear"
    assert result.values["actor_config.adam_beta2"] == 0.999


def test_every_written_default_does_differ_from_ours() -> None:
    needed = {
        "megatron_training": {
            "train_iters": 1,
            "global_batch_size": 1,
            "seq_length": 1,
            "data_path": "x",
        },
        "actor_config": {"load": "x"},
        "rl_config": {"mini_batch_size": 1},
        "generate_config": {},
    }
    ours: Any = load_run_config(needed)
    for key, theirs in DEFAULTS.items():
        if key == "role.use_distributed_optimizer":
            found = ours.megatron_training.use_distributed_optimizer
        else:
            found = ours
            for part in key.replace("role.", "actor_config.").split("."):
                found = getattr(found, part)
        assert found != theirs, key


def test_keys_that_never_did_anything_are_ignored_even_where_ours_of_that_name_does() -> None:
    result = imported({"rl_config.verifier_timeout": 120, "rl_config.verifier_parallel": 4})
    assert "rl_config.verifier_timeout" not in result.values
    assert of(result, "rl_config.verifier_parallel").note == (
        "no effect in MindSpeed-RL: documented, but not read by its code"
    )


def test_both_batch_sizes_count_prompts_and_a_mini_batch_is_no_larger_than_the_batch() -> None:
    result = imported({"rl_config.mini_batch_size": 64})
    assert result.values["megatron_training.global_batch_size"] == 32
    assert result.values["rl_config.mini_batch_size"] == 32
    assert of(result, "rl_config.mini_batch_size").note.startswith("was 64, more than the 32")
    assert "n_samples_per_prompt" in of(imported({}), "rl_config.mini_batch_size").note


def test_lengths_are_raised_to_prompt_and_response_together() -> None:
    result = imported({"megatron_training.seq_length": 2048, "generate_config.max_model_len": 4000})
    assert result.values["megatron_training.seq_length"] == 4096
    assert result.values["generate_config.max_model_len"] == 4096
    assert of(result, "megatron_training.seq_length").note.startswith("was 2048; prompt and")


def test_a_prompt_fits_into_one_piece_of_the_engine() -> None:
    result = imported({"generate_config.max_num_batched_tokens": 1024})
    assert result.values["generate_config.max_num_batched_tokens"] == 4096


def test_token_budgets_hold_the_longest_sequence() -> None:
    result = imported(
        {
            "rl_config.use_dynamic_bsz": True,
            "rl_config.max_packing_token_size": 4000,
            "rl_config.ref_max_packing_token_size": 8192,
        }
    )
    assert result.values["rl_config.max_packing_token_size"] == 4096
    assert result.values["rl_config.ref_max_packing_token_size"] == 8192
    assert result.values["rl_config.use_remove_padding"] is True


def test_paths_are_left_open_and_the_tokenizers_folder_stands_in_for_the_checkpoint() -> None:
    result = imported({"actor_config.save": "ckpt"})
    assert result.values["actor_config.load"] == "models/hf"
    assert of(result, "actor_config.load").kind == "open"
    assert of(result, "actor_config.load").note.startswith("was ckpt; it has Megatron's format")
    assert of(result, "megatron_training.data_path").note.startswith("was a prefix of .bin/.idx")
    assert "actor_config.save" not in result.values
    assert imported({"actor_config.save": "new"}).values["actor_config.save"] == "new"


def test_a_split_that_keeps_rows_from_the_training_holds_out_as_many() -> None:
    cut = imported({"megatron_training.split": "95,4,1"})
    assert of(cut, "megatron_training.split").kind == "derived"
    assert cut.values["data_config.held_out_fraction"] == 0.05
    whole = of(imported({"megatron_training.split": "100,0,0"}), "megatron_training.split")
    note = "all rows are used for training, the same in mindrl"
    assert (whole.kind, whole.note) == ("ignored", note)


def test_a_swapped_optimizer_is_offloaded_between_updates() -> None:
    result = imported(
        {
            "megatron_training.swap_optimizer": True,
            "generate_config.offload_train_optimizer": False,
        }
    )
    assert result.values["generate_config.offload_train_optimizer"] is True


@pytest.mark.parametrize(
    ("changes", "coefficient"),
    [
        ({"rl_config.init_kl_coef": 0.05}, 0.05),
        ({**DAPO, "rl_config.init_kl_coef": 0.05}, 0.0),
        ({**PPO, "rl_config.init_kl_coef": 0.05}, 0.0),
        ({**PPO, "rl_config.init_kl_coef": 0.05, "rl_config.use_kl_in_reward": True}, 0.05),
    ],
)
def test_a_kl_term_is_there_only_where_its_loss_or_reward_has_one(
    changes: dict[str, Any], coefficient: float
) -> None:
    assert imported(changes).values["rl_config.init_kl_coef"] == coefficient


@pytest.mark.parametrize(
    ("changes", "key", "left"),
    [
        (
            {
                "rl_config.verifier_function": ["format", "base_acc", "acc_for_ppo"],
                "rl_config.verifier_weight": [1.0, 0.5, 2.0],
            },
            "rl_config.verifier_function",
            {
                "rl_config.verifier_function": ["base_acc", "math_verify"],
                "rl_config.verifier_weight": [0.5, 2.0],
            },
        ),
        (
            {"rl_config.verifier_function": ["math_17_acc"]},
            "rl_config.verifier_function",
            {"rl_config.verifier_function": ["math_verify"]},
        ),
        ({"rl_config.multi_turn_enable": True}, "rl_config.multi_turn_enable", {}),
        ({"rl_config.kl_ctrl_type": "adaptive"}, "rl_config.kl_ctrl_type", {}),
        ({"rl_config.rule_reward": False}, "rl_config.rule_reward", {}),
        ({"actor_config.no_load_optim": False}, "actor_config.no_load_optim", {}),
        ({"megatron_training.hidden_dropout": 0.1}, "megatron_training.hidden_dropout", {}),
    ],
)
def test_a_part_that_is_not_there_is_refused_with_what_a_run_without_it_is(
    changes: dict[str, Any], key: str, left: dict[str, Any]
) -> None:
    result = imported(changes)
    assert [each.key for each in result.refused] == [key]
    assert left.items() <= result.values.items()


def test_checkpoints_are_as_often_as_there_and_without_an_optimizer_they_are_exports() -> None:
    interval = {"megatron_training.save_interval": 20}
    ours = {"megatron_training.save_interval", "megatron_training.export_interval"}

    def found(changes: dict[str, Any]) -> dict[str, Any]:
        values = imported(interval | changes).values
        return {key: values[key] for key in ours & values.keys()}

    assert found({}) == found({"actor_config.no_save_optim": False}) == interval
    assert found({"actor_config.no_save_optim": True}) == {
        "megatron_training.save_interval": 0,
        "megatron_training.export_interval": 20,
    }


@pytest.mark.parametrize(
    ("key", "value", "kind", "note"),
    [
        ("finetune", True, "ignored", "loads only weights, the same in mindrl"),
        ("finetune", False, "open", "false: MindSpeed-RL continues the step count"),
        ("no_load_optim", True, "ignored", "loads only weights, the same in mindrl"),
        ("no_load_rng", True, "ignored", "derived from seed and step"),
        ("no_save_rng", True, "ignored", "derived from seed and step"),
        ("load_checkpoint_loosely", True, "ignored", "is always an error in mindrl"),
        ("enable_high_availability", True, "ignored", "rl_config.max_restarts"),
    ],
)
def test_each_key_of_checkpoints_has_a_note(key: str, value: Any, kind: str, note: str) -> None:
    found = of(imported({f"actor_config.{key}": value}), f"actor_config.{key}")
    assert found.kind == kind
    assert note in found.note


def test_both_clip_ratios_and_the_penalty_for_length_of_dapo_are_taken_over() -> None:
    result = imported(
        {
            **DAPO,
            "rl_config.clip_higher_enable": True,
            "rl_config.clip_ratio_high": 0.28,
            "rl_config.overlong_buffer_enable": True,
            "rl_config.overlong_buffer": 16,
        }
    )
    assert result.refused == ()
    ours = {key: result.values.get(f"rl_config.{key}") for key in ("clip_ratio", "clip_ratio_high")}
    assert ours == {"clip_ratio": None, "clip_ratio_high": 0.28}
    # What the file leaves out is 0.1 there.
    assert result.values["rl_config.clip_ratio_low"] == 0.1
    assert result.values["rl_config.overlong_buffer"] == 16
    assert result.values["rl_config.overlong_buffer_enable"] is True


@pytest.mark.parametrize(
    ("metric", "batches", "ours", "most"),
    [
        # 5 times 24 prompts are 7.5 times the 16 that a step trains.
        ("math_17k_acc", 5, "math_verify", 8),
        ("acc", 0, None, 0),
        (None, 1, None, 2),
    ],
)
def test_dynamic_sampling_trains_as_many_prompts_as_there_and_draws_no_fewer(
    metric: str | None, batches: int, ours: str | None, most: int
) -> None:
    changes = {
        **DAPO,
        "megatron_training.global_batch_size": 24,
        "rl_config.mini_batch_size": 16,
        "rl_config.verifier_function": ["math_17k_acc"],
        "rl_config.filter_groups_enable": True,
        "rl_config.filter_groups_train_batch_size": 16,
        "rl_config.filter_groups_max_batches": batches,
    }
    result = imported(changes | ({"rl_config.filter_groups_metric": metric} if metric else {}))
    assert result.refused == ()
    expected = {
        "rl_config.filter_groups_enable": True,
        "rl_config.filter_groups_metric": ours,
        "rl_config.filter_groups_max_batches": most,
        "megatron_training.global_batch_size": 16,
        "rl_config.mini_batch_size": 16,
    }
    assert {key: result.values[key] for key in expected} == expected


@pytest.mark.parametrize(("splits", "staleness"), [(1, None), (2, 1), (4, 3)])
def test_a_response_takes_as_many_steps_as_it_had_parts(splits: int, staleness: int | None) -> None:
    result = imported({"rl_config.partial_rollout_max_split": splits})
    assert result.refused == ()
    assert result.values.get("rl_config.max_staleness") == staleness
    assert result.values.get("rl_config.partial_rollout", False) is (splits > 1)


def test_dapo_keys_mean_nothing_to_grpo() -> None:
    result = imported({"rl_config.clip_higher_enable": True, "rl_config.clip_ratio": 0.1})
    assert result.refused == ()
    assert result.values["rl_config.clip_ratio"] == 0.1
    assert of(result, "rl_config.clip_higher_enable").note == "only DAPO's loss reads it"


def test_a_critic_has_sizes_and_an_optimizer_of_its_own_and_all_devices() -> None:
    result = imported(
        {
            **PPO,
            "critic_config.lr": 5e-6,
            "critic_config.pipeline_model_parallel_size": 2,
            "critic_config.load": "orm",
            "rl_config.critic_resource.num_npus": 16,
        }
    )
    assert result.values["critic_config.lr"] == 5e-6
    assert result.values["critic_config.pipeline_model_parallel_size"] == 2
    assert result.values["critic_config.tensor_model_parallel_size"] == 1
    assert "critic_config.load" not in result.values
    assert of(result, "critic_config.load").kind == "open"
    assert result.refused == ()


def test_a_file_for_a_model_of_steps_is_refused() -> None:
    need = "stage=prm must be ray_grpo, ray_dapo, ray_ppo, dpo, orm or sft"
    with pytest.raises(ConfigError, match=need):
        imported({"megatron_training.stage": "prm"})


def test_a_resource_is_null_or_has_a_number_of_devices() -> None:
    nothing = imported({"rl_config.reward_resource": None})
    assert of(nothing, "rl_config.reward_resource").note == "null: the same as without the key"
    with pytest.raises(ConfigError, match=r"rl_config\.reward_resource is not a key"):
        imported({"rl_config.reward_resource": 4})
    refused = imported({"rl_config.reward_resource.num_npus": 4}).refused
    assert [each.key for each in refused] == ["rl_config.reward_resource.num_npus"]


def test_a_model_that_no_file_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor_config\.model=other is in no model file"):
        imported({"actor_config.model": "other"})
