"""Import of verl's training: defaults that the file relies on, precision, schedule, checkpoints."""

from typing import Any

import pytest

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.config.validate import findings
from mindrl.migrate.mapped import Mapped
from mindrl.migrate.verl import import_verl

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MEGATRON = f"{ACTOR}.megatron"
GRPO: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "model",
    "data.train_files": "train.parquet",
    "trainer.total_training_steps": 50,
    f"{ROLLOUT}.n": 8,
}


def run_of(**keys: Any) -> RunConfig:
    return load_run_config(nested(import_verl({**GRPO, **keys}).values))


def entry(key: str, keys: dict[str, Any]) -> Mapped:
    (found,) = (each for each in import_verl({**GRPO, **keys}).mapped if each.key == key)
    return found


def test_layers_are_recomputed_as_verl_does_without_a_key() -> None:
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    for given, granularity in (({}, "full"), ({key: True}, "full"), ({key: False}, None)):
        assert run_of(**given).actor_config.recompute_granularity == granularity
    # Megatron has keys of its own.
    megatron = {f"{MEGATRON}.tensor_model_parallel_size": 2, key: True}
    assert run_of(**megatron).actor_config.recompute_granularity is None
    assert entry(key, megatron).kind == "ignored"
    megatron[f"{MEGATRON}.override_transformer_config.recompute_granularity"] = "selective"
    assert run_of(**megatron).actor_config.recompute_granularity == "selective"
    critic = run_of(**{"algorithm.adv_estimator": "gae"}).critic_config
    assert critic is not None
    assert critic.recompute_granularity == "full"


@pytest.mark.parametrize(("expert", "size"), [(1, 1), (2, 4)])
def test_an_expert_is_split_over_the_tensor_parallel_ranks_without_a_key(
    expert: int, size: int
) -> None:
    keys = {f"{MEGATRON}.tensor_model_parallel_size": 4}
    keys |= {f"{MEGATRON}.expert_model_parallel_size": expert}
    assert run_of(**keys).actor_config.expert_tensor_parallel_size == size
    keys |= {f"{MEGATRON}.expert_tensor_parallel_size": 1}
    assert run_of(**keys).actor_config.expert_tensor_parallel_size == 1


def test_all_checkpoints_are_kept_without_a_limit() -> None:
    key = "trainer.max_actor_ckpt_to_keep"
    for keys, kept in (
        ({"trainer.save_freq": 20}, (2, 20)),
        ({"trainer.save_freq": 20, key: None}, (2, 20)),
        ({"trainer.save_freq": 20, key: 5}, (5, 0)),
        ({key: 0}, (2, 0)),
    ):
        training = run_of(**keys).megatron_training
        assert (training.keep_last, training.keep_every) == kept


@pytest.mark.parametrize(
    ("mode", "ours", "kind"),
    [("auto", "auto", "renamed"), ("disable", "never", "renamed"), ("resume_path", "auto", "open")],
)
def test_a_run_starts_from_the_checkpoint_that_verl_starts_from(
    mode: str, ours: str, kind: str
) -> None:
    keys = {"trainer.resume_mode": mode, "trainer.resume_from_path": "out/global_step_20"}
    assert run_of(**keys).megatron_training.resume == ours
    assert entry("trainer.resume_mode", keys).kind == kind
    assert entry("trainer.resume_from_path", keys).kind != "open"


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [("model_dtype", "fp32", "bfloat16"), ("dtype", "bfloat16", "float16")],
)
def test_keys_of_fsdp_that_change_results_are_open_unless_they_are_the_default(
    name: str, default: object, other: object
) -> None:
    key = f"{ACTOR}.fsdp_config.{name}"
    assert entry(key, {key: default}).kind == "ignored"
    assert entry(key, {key: other}).kind == "open"
    assert run_of(**{f"{ACTOR}.fsdp_config.full_determinism": True}).megatron_training.deterministic


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ROLLOUT}.multi_turn.enable", True),
        (f"{ROLLOUT}.multi_turn.tool_config_path", "tools.yaml"),
        ("reward_model.enable", True),
    ],
)
def test_a_part_that_mindrl_configures_anew_is_refused(key: str, value: object) -> None:
    assert [each.key for each in import_verl({**GRPO, key: value}).refused] == [key]
    assert not import_verl({**GRPO, f"{ROLLOUT}.multi_turn.enable": False}).refused


def test_the_schedule_of_the_learning_rate_is_that_of_verl() -> None:
    place = f"{ACTOR}.optim"
    keys: dict[str, Any] = {
        f"{place}.lr": 1e-5,
        f"{place}.lr_warmup_steps": 10,
        f"{place}.lr_warmup_steps_ratio": 0.1,
        f"{place}.lr_scheduler_type": "cosine",
        f"{place}.min_lr_ratio": 0.1,
    }
    actor = run_of(**keys).actor_config
    assert (actor.lr_warmup_fraction, actor.lr_decay_style) == (10 / 50, "cosine")
    assert actor.min_lr == pytest.approx(1e-6)
    # FSDP reads 0 steps, Megatron only more.
    keys[f"{place}.lr_warmup_steps"] = 0
    assert run_of(**keys).actor_config.lr_warmup_fraction == 0
    keys[f"{MEGATRON}.tensor_model_parallel_size"] = 2
    assert run_of(**keys).actor_config.lr_warmup_fraction == 0.1
    keys[f"{place}.lr_warmup_steps"] = 10
    assert entry(
        f"{place}.lr_warmup_steps", {**keys, "trainer.total_training_steps": None}
    ).kind == ("open")


def test_gradients_are_clipped_by_the_key_of_the_engine() -> None:
    keys = {f"{ACTOR}.grad_clip": 0.5, f"{ACTOR}.optim.clip_grad": 0.7}
    assert run_of(**keys).actor_config.clip_grad == 0.5
    assert run_of(**keys, **{f"{ACTOR}.strategy": "megatron"}).actor_config.clip_grad == 0.7


def test_the_layout_of_chunks_and_the_replay_of_routes_come_along() -> None:
    keys = {f"{MEGATRON}.pipeline_model_parallel_size": 2, f"{ACTOR}.router_replay.mode": "R2"}
    keys |= {f"{MEGATRON}.virtual_pipeline_model_parallel_size": 2}
    keys |= {f"{ACTOR}.ppo_mini_batch_size": 1024}
    run = run_of(**keys)
    actor = run.actor_config
    assert not [each for each in findings(run) if each.field == "actor_config.router_replay"]
    assert (actor.virtual_pipeline_model_parallel_size, actor.router_replay) == (2, "R2")
    key = f"{ACTOR}.router_replay.mode"
    assert entry(key, {key: "record"}).kind == "refused"


def test_the_size_of_the_engine_splits_a_sequence() -> None:
    sizes = {f"{ACTOR}.ulysses_sequence_parallel_size": 1}
    sizes |= {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}
    run = run_of(**sizes, **{f"{ACTOR}.ppo_max_token_len_per_gpu": 1000})
    assert run.actor_config.context_parallel_size == 4
    assert run.rl_config.max_packing_token_size == 4000


def test_a_test_file_is_sampled_as_in_verl() -> None:
    files, place = {"data.val_files": "test.parquet"}, f"{ROLLOUT}.val_kwargs"
    greedy = run_of(**files, **{f"{place}.n": 1, f"{place}.temperature": 0})
    assert greedy.megatron_training.test_data_path == "test.parquet"
    keys = {f"{place}.n": 8, f"{place}.temperature": 0.6, f"{place}.top_p": 0.9}
    sampled = run_of(**files, **keys)
    assert sampled.megatron_training.test_data_path is None
    (found,) = sampled.data_config.eval_sets
    assert (found.samples, found.temperature, found.top_p, found.top_k) == (8, 0.6, 0.9, -1)
    assert entry(f"{place}.n", {**files, **keys}).kind == "derived"


def test_options_of_a_kl_term_that_the_run_lacks_have_no_effect() -> None:
    kind, reward = f"{ACTOR}.kl_loss_type", "algorithm.kl_ctrl.kl_coef"
    keys = {kind: "low_var_kl", reward: 0.1}
    assert {entry(key, keys).kind for key in keys} == {"ignored"}
    assert entry(reward, {**keys, f"{ACTOR}.use_kl_loss": True}).kind == "ignored"
    assert entry(kind, {**keys, f"{ACTOR}.use_kl_loss": True}).kind == "renamed"


def test_dynamic_micro_batches_are_packed() -> None:
    key, dynamic = "actor_rollout_ref.model.use_remove_padding", f"{ACTOR}.use_dynamic_bsz"
    run = run_of(**{key: False, dynamic: True, f"{ACTOR}.ppo_max_token_len_per_gpu": 16384})
    assert (findings(run), run.rl_config.use_remove_padding) == ([], True)
    assert not run_of(**{key: False}).rl_config.use_remove_padding
    # Megatron has a key of its own.
    megatron = {f"{MEGATRON}.use_remove_padding": True, key: False}
    assert run_of(**megatron).rl_config.use_remove_padding


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.5, ("truncate", 0.0, 2.5)),
        ("3", ("truncate", 0.0, 3.0)),
        ("0.5_4.0", ("mask", 0.5, 4.0)),
        ("half", None),
    ],
)
def test_weights_of_a_correction_have_the_bounds_of_verl(
    value: object, expected: tuple[str, float, float] | None
) -> None:
    key = "algorithm.rollout_correction.rollout_is_threshold"
    keys = {"algorithm.rollout_correction.rollout_is": "token", key: value}
    if expected is None:
        assert [each.key for each in import_verl({**GRPO, **keys}).refused] == [key]
        return
    found = run_of(**keys).rl_config.rollout_correction
    assert (found.beyond, found.min_weight, found.max_weight) == expected


@pytest.mark.parametrize("dtype", ["float16", "half"])
def test_a_data_type_that_mindrl_lacks_is_refused(dtype: str) -> None:
    key = f"{ROLLOUT}.dtype"
    assert [each.key for each in import_verl({**GRPO, key: dtype}).refused] == [key]
    assert run_of(**{key: "float32"}).generate_config.dtype == "float32"
