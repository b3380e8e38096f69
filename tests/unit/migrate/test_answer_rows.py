"""Import of MindSpeed-RL files for training on answers in rows."""

from typing import Any

import pytest
from mindspeed_rl_files import of

from mindrl.config.load import load_run_config
from mindrl.config.text import config_text, nested
from mindrl.migrate.file import their_run
from mindrl.migrate.mapped import Import
from mindrl.migrate.run import import_run

DPO: dict[str, Any] = {
    "megatron_training.stage": "dpo",
    "megatron_training.is_pairwise_dataset": True,
    "megatron_training.global_batch_size": 64,
    "megatron_training.micro_batch_size": 2,
    "megatron_training.seq_length": 4096,
    "megatron_training.train_iters": 1000,
    "megatron_training.lr": 5e-8,
    "megatron_training.tensor_model_parallel_size": 2,
    "megatron_training.pipeline_model_parallel_size": 8,
    "megatron_training.sequence_parallel": True,
    "megatron_training.data_path": "./dataset/dpo",
    "megatron_training.load": "./weights",
    "megatron_training.ref_model": "./weights",
    "megatron_training.refer_model_iter": 1,
    "megatron_training.tokenizer_name_or_path": "./qwen3",
}
LOSS = "megatron_training.dpo_loss_type"


def read(keys: dict[str, Any]) -> Import:
    return import_run(their_run(nested(keys), {}))


def test_a_file_becomes_a_run_on_preferences_with_the_sizes_of_its_updates() -> None:
    found = read(DPO)
    config = load_run_config(nested(found.values))
    assert config.preference_config is not None
    assert config.preference_config.loss == "sigmoid"
    training, rl = config.megatron_training, config.rl_config
    assert (training.global_batch_size, rl.mini_batch_size, training.seq_length) == (64, 64, 4096)
    assert config.actor_config.micro_batch_size == 2
    assert config.actor_config.pipeline_model_parallel_size == 8
    assert {each.key for each in found.mapped} >= DPO.keys()
    assert [each.key for each in found.mapped if each.kind == "open"] == [
        "megatron_training.data_path",
        "rl_config.actor_resource.num_npus",
        "megatron_training.load",
    ]


@pytest.mark.parametrize("form", ["sigmoid", "hinge", "ipo"])
def test_each_form_of_the_loss_keeps_its_name(form: str) -> None:
    config = load_run_config(nested(read(DPO | {LOSS: form}).values))
    assert config.preference_config is not None
    assert config.preference_config.loss == form


def test_a_reference_of_its_own_must_be_named_in_the_format_of_hugging_face() -> None:
    key = "megatron_training.ref_model"
    entry = of(read(DPO | {key: "./other"}), key)
    assert (entry.kind, entry.sets) == ("open", {"ref_config.load": "./other"})
    assert "Hugging Face format" in entry.note


def test_the_file_that_is_written_has_all_sections_and_all_keys_for_overrides() -> None:
    text = config_text(read(DPO).values, header=[], comments={}, has_critic=False)
    assert "\ngenerate_config: {}\n" in text
    assert "  - mindrl_preference_defaults\n" in text


def test_rows_that_were_held_out_stay_held_out_and_a_template_is_named() -> None:
    more = {"megatron_training.split": "90,10,0", "megatron_training.prompt_type": "qwen"}
    found = read(DPO | more)
    assert found.values["data_config.held_out_fraction"] == 0.1
    assert of(found, "megatron_training.prompt_type").kind == "open"
    assert "preference_config.chosen_column" in of(found, "megatron_training.data_path").note


WITHOUT_REFERENCE = {key: value for key, value in DPO.items() if "ref" not in key}


def test_a_file_for_a_reward_model_becomes_a_run_on_the_same_pairs() -> None:
    found = read(WITHOUT_REFERENCE | {"megatron_training.stage": "orm"})
    config = load_run_config(nested(found.values))
    assert config.preference_config is not None
    assert config.preference_config.loss == "bradley_terry"
    assert config.preference_config.trains_rewards
    assert not config.uses_reference
    assert config.megatron_training.global_batch_size == config.rl_config.mini_batch_size == 64
    assert "rejected_column" in of(found, "megatron_training.data_path").note
    assert of(found, "megatron_training.is_pairwise_dataset").kind == "ignored"


def test_a_file_for_supervised_fine_tuning_names_prompts_and_answers() -> None:
    stage = {"megatron_training.stage": "sft", "megatron_training.is_instruction_dataset": True}
    found = read(WITHOUT_REFERENCE | stage)
    config = load_run_config(nested(found.values))
    assert config.sft_config is not None
    assert config.preference_config is None
    assert config.megatron_training.global_batch_size == config.rl_config.mini_batch_size == 64
    assert "sft_config.response_column" in of(found, "megatron_training.data_path").note
    assert "counts answers" in of(found, "megatron_training.global_batch_size").note
    text = config_text(found.values, header=[], comments={}, has_critic=False)
    assert "  - mindrl_sft_defaults\n" in text
    assert "\nsft_config: {}\n" in text
