"""Names of other trainers: each has a mindrl key, and errors name it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.config.load import field_names, load_run_config
from mindrl.errors import ConfigError
from mindrl.migrate.mapped import Import, Mapped
from mindrl.migrate.names import OTHER_NAMES, other_name
from mindrl.migrate.verl_keys import NAMES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("key", "value", "ours"),
    [
        ("num_generations", 8, "rl_config.n_samples_per_prompt=8"),
        ("rl_config.num_generations", 8, "rl_config.n_samples_per_prompt=8"),
        ("learning_rate", 1e-5, "actor_config.lr=1e-05"),
        ("critic_config.learning_rate", 1e-5, "critic_config.lr=1e-05"),
        ("scale_rewards", False, "rl_config.adv_estimator=group_mean"),
        ("reward_funcs", "f.py:g", 'rl_config.verifier_function=["f.py:g"]'),
        ("loss_type", "own", "rl_config.loss_aggregation"),
        ("loss_type", "dr_grpo", "rl_config.loss_aggregation=sequence_sum"),
        ("max_steps", 100, "megatron_training.train_iters"),
        ("num_train_epochs", 1, "megatron_training.train_iters"),
        ("gradient_accumulation_steps", 4, "rl_config.mini_batch_size"),
        ("output_dir", "outputs/mine", "hydra.run.dir=outputs/mine"),
        ("lr_scheduler_type", "constant_with_warmup", "actor_config.lr_decay_style=constant"),
        ("critic_config.lr_scheduler_type", "linear", "critic_config.lr_decay_style=linear"),
        ("lr_scheduler_type", "polynomial", "actor_config.lr_decay_style"),
        ("warmup_steps", 10, "actor_config.lr_warmup_fraction"),
        ("gradient_checkpointing", True, "actor_config.recompute_granularity=full"),
        ("shuffle_dataset", False, "megatron_training.no_shuffle=true"),
        ("save_total_limit", 3, "megatron_training.keep_last=3"),
        ("ref_model", "base", "ref_config.load=base"),
        ("precompute_ref_log_probs", True, "preference_config.reference_file"),
        ("max_length", 512, "megatron_training.seq_length=512"),
        ("eval_dataset", "e.jsonl", "megatron_training.test_data_path=e.jsonl"),
        ("processing_class", "base", "megatron_training.tokenizer_name_or_path=base"),
        ("lmbda", 1.0, "rl_config.adv_estimator=teacher"),
        ("lmbda", 0.5, "rl_config.adv_estimator"),
        ("teacher_model", "big", "teacher_config.load=big"),
        ("teacher_model_server_url", None, "teacher_config.url"),
        ("loss_top_k", 64, "teacher_config.candidates=64"),
        ("adv_estimator", "grpo", "rl_config.adv_estimator=group_norm"),
        ("device", "cuda", "rl_config.device=gpu"),
        ("actor_rollout_ref.rollout.n", 8, "rl_config.n_samples_per_prompt=8"),
        ("actor_rollout_ref.actor.kl_loss_coef", 0.01, "rl_config.init_kl_coef=0.01"),
        ("actor_rollout_ref.actor.optim.clip_grad", 0.5, "actor_config.clip_grad=0.5"),
        (
            *("actor_rollout_ref.ref.megatron.tensor_model_parallel_size", 2),
            "ref_config.tensor_model_parallel_size=2",
        ),
        ("trainer.resume_mode", "disable", "megatron_training.resume=never"),
        ("resume_from_path", "outputs/mine", "megatron_training.resume=outputs/mine"),
        ("ppo_mini_batch_size", 64, "rl_config.mini_batch_size=64"),
        ("data.shuffle", True, "megatron_training.no_shuffle=false"),
        ("algorithm", {"adv_estimator": "rloo"}, "rl_config.adv_estimator=rloo"),
        ("prompt_max_len", 512, "rl_config.max_prompt_length=512"),
        ("num_rollout", 100, "megatron_training.train_iters=100"),
        ("rl_config.use_wandb", True, "rl_config.tracking.trackers=[wandb]"),
    ],
)
def test_a_name_of_another_trainer_comes_to_our_key_with_its_value(
    key: str, value: object, ours: str
) -> None:
    assert str(other_name(key, value)).endswith(f"'s name; in mindrl: {ours}")


def test_a_key_that_is_ours_in_a_section_is_no_name_of_another_trainer() -> None:
    for key, value in (("adv_estimator", "rloo"), ("device", "cpu"), ("n_samples_per_prompt", 8)):
        assert other_name(key, value) is None
    assert other_name("rl_config.no_such_key", 1) is None


def test_what_has_no_key_here_says_why_and_a_wrong_value_is_no_traceback() -> None:
    answer = str(other_name("actor_rollout_ref.hybrid_engine", True))
    assert answer.endswith("has no equivalent in mindrl: mindrl does the same without a key")
    assert "must be a whole number" in str(other_name("trainer.nnodes", "two"))
    answer = str(other_name("logging_steps", 10))
    assert answer.endswith("has no equivalent in mindrl: metrics of each step are recorded")


def test_every_name_leads_to_a_key_that_is_here() -> None:
    ours = {key for names in (*OTHER_NAMES.values(), NAMES) for key in names.values()}
    sections = {key: key.split(".") for key in ours}
    unknown = [key for key, (*path, name) in sections.items() if name not in field_names(path)]
    assert unknown == ["hydra.run.dir"]


def test_the_page_for_users_of_trl_names_the_same_keys() -> None:
    page = (ROOT / "docs/how-to/come-from-trl.md").read_text("utf-8").partition("## Keys")[2]
    rows = [
        re.findall(r"`([^`]+)`", line)
        for line in page.splitlines()
        if line.startswith("| `") and "`GRPOConfig`" not in line
    ]
    pairs = [
        pair
        for row in rows
        for pair in zip(row[: len(row) // 2], row[len(row) // 2 :], strict=True)
    ]
    told = {theirs.partition(":")[0]: ours.partition(":")[0] for theirs, ours in pairs}
    told.pop("max_prompt_length")
    assert told.items() <= OTHER_NAMES["TRL"].items()
    assert len(told) == 14


def test_unknown_keys_of_a_file_and_of_the_command_line_are_answered_with_ours() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_run_config({"actor_config": {"load": "m", "learning_rate": 1e-5}}, other_name)
    assert (
        "actor_config.learning_rate is not a configuration key; "
        "it is TRL's name; in mindrl: actor_config.lr=1e-05"
    ) in str(refusal.value).splitlines()
    command = [sys.executable, "cli/train_grpo.py", "--dry-run", "trainer.nnodes=2", "x.y.z=1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    first, second = ended.stderr.splitlines()
    assert first.endswith("it is verl's name; in mindrl: rl_config.actor_resource.num_npus=16")
    assert "x.y.z is not a configuration key; write the section first" in second


def test_an_error_names_the_key_of_the_file_where_it_has_another_name() -> None:
    renamed = Mapped("model.lr", "renamed", {"actor_config.lr": 0.0})
    honoured = Mapped("rl_config.gamma", "honoured", {"rl_config.gamma": 2})
    imported = Import(mapped=[renamed, honoured])
    for error, origin in {
        "actor_config.lr=0.0 must be greater than 0": " (from model.lr)",
        "rl_config.gamma=2 must be at most 1": "",
        "rl_config.epochs=0 must be at least 1": "",
    }.items():
        assert imported.with_origin(error) == error + origin
