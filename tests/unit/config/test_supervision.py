"""Supervised fine-tuning: what follows from it, and what contradicts it."""

from pathlib import Path

import pytest
from checked_runs import MakeConfig, model_folder

from mindrl.config.run import RunConfig
from mindrl.config.supervision import in_epochs, supervised
from mindrl.config.validate import findings
from mindrl.platform.device import Platform, planned_platform
from mindrl.preflight.derived_numbers import derived_numbers
from mindrl.preflight.role_heads import draws_head, role_head
from mindrl.programs.train import require_engines

SAMPLES = {"rl_config.n_samples_per_prompt": 8}
"""As by default."""
SFT = SAMPLES | {"sft_config": {}}
REWARD = {"data_source": "a", "verifier_function": ["exact"], "verifier_weight": [1.0]}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(model_folder(tmp_path / "model"))


def test_a_row_is_one_sequence_and_may_be_as_long_as_the_trainer_takes(
    run_config: MakeConfig, model: str
) -> None:
    config = run_config(model, SFT | {"generate_config.sampling_config.temperature": 0.5})
    assert not config.rolls_out
    assert config.learns
    assert config.sequences_per_step == config.megatron_training.global_batch_size == 4
    assert config.rl_config.max_prompt_length + 1 == config.megatron_training.seq_length == 64
    # Of what is drawn nothing counts: the loss is that of the model itself.
    assert config.generate_config.sampling_config.temperature == 1.0
    assert supervised(config) == config
    assert findings(config) == []
    require_engines(config)


def test_a_teacher_of_rows_is_compared_at_the_temperature(
    run_config: MakeConfig, model: str
) -> None:
    key = "generate_config.sampling_config.temperature"
    taught = SFT | {"teacher_config": {"load": model, "candidates": 4}, key: 0.5}
    config = run_config(model, taught)
    assert config.generate_config.sampling_config.temperature == 0.5
    assert findings(config) == []
    served = {"url": "http://127.0.0.1:8000", "candidates": 4}
    (found,) = findings(run_config(model, taught | {"teacher_config": served}))
    assert key in str(found)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("rl_config.n_samples_per_prompt", 4, "rows have their answers"),
        ("rl_config.policy_loss", "gspo", "the loss is that of the answers"),
        ("rl_config.init_kl_coef", 0.1, "it weighs no reference in the loss"),
        ("rl_config.critic_warmup", 1, "there is no critic"),
        ("rl_config.ref_update_interval", 2, "the reference stays what it is"),
        ("rl_config.use_kl_in_reward", True, "nothing is rated"),
        ("rl_config.epochs", 2, "passes over the rows are sft_config.epochs"),
        ("rl_config.verifier_function", ["exact"], "nothing is rated"),
        ("rl_config.partial_rollout", True, "no responses are generated"),
        ("critic_config", {}, "only; remove it"),
        ("data_config.rewards", [REWARD], "only; remove it"),
    ],
)
def test_a_key_that_says_something_else_is_named_with_the_reason(
    key: str, value: object, why: str, run_config: MakeConfig, model: str
) -> None:
    found = [str(each) for each in findings(run_config(model, SFT | {key: value}))]
    assert any(text.startswith(key) and why in text for text in found), found


@pytest.mark.parametrize(
    ("loss", "key", "value", "why"),
    [
        ("bradley_terry", "preference_config.beta", 0.5, "hinge or kto, found bradley_terry"),
        ("score", "preference_config.margin_column", "gap", "bradley_terry, found score"),
        ("sigmoid", "preference_config.center_rewards_coefficient", 0.01, "found sigmoid"),
        ("ipo", "preference_config.label_smoothing", 0.1, "needs preference_config.loss=sigmoid"),
        ("sigmoid", "preference_config.desirable_weight", 0.5, "preference_config.loss=kto"),
        ("score", "preference_config.step_separator", "; ", "loss=steps, found score"),
        ("kto", "rl_config.mini_batch_size", 1, "the KL is estimated from the answers of other"),
        ("bradley_terry", "actor_config.lora.r", 4, "a reward model's head is trained whole"),
        ("bradley_terry", "rl_config.init_kl_coef", 0.1, "it weighs no reference in the loss"),
    ],
)
def test_a_key_of_another_form_of_preferences_is_named(
    loss: str, key: str, value: object, why: str, run_config: MakeConfig, model: str
) -> None:
    config = run_config(model, SAMPLES | {"preference_config.loss": loss, key: value})
    (found,) = [str(each) for each in findings(config)]
    assert found.startswith(f"{key}={value}")
    assert why in found


def test_a_reward_model_has_a_scalar_head_and_no_reference(
    run_config: MakeConfig, model: str
) -> None:
    config = run_config(model, SAMPLES | {"preference_config.loss": "bradley_terry"})
    assert findings(config) == []
    assert config.roles == ("actor",)
    assert role_head(config, "actor") == "value"
    assert draws_head(config, "actor")
    assert not draws_head(config, "reward")
    assert config.sequences_per_update == 2 * config.rl_config.mini_batch_size
    for loss in ("score", "steps"):
        scores = run_config(model, SAMPLES | {"preference_config.loss": loss})
        assert scores.sequences_per_update == scores.rl_config.mini_batch_size


@pytest.mark.parametrize(
    ("epochs", "rows", "steps"), [(None, 10, 3), (1, 8, 2), (1, 9, 3), (2, 4, 2), (9, 100, 3)]
)
def test_epochs_end_a_run_before_its_steps_do(
    epochs: int | None, rows: int, steps: int, run_config: MakeConfig, model: str
) -> None:
    """Of 3 steps of 4 rows each."""
    config = run_config(model, {"sft_config": {"epochs": epochs}})
    assert in_epochs(config, rows).megatron_training.train_iters == steps


def test_its_numbers_say_nothing_of_rollouts(run_config: MakeConfig, model: str) -> None:
    platform: Platform = planned_platform("cpu")
    config: RunConfig = run_config(model, {"sft_config": {"response_column": "out"}})
    numbers = derived_numbers(config, platform)
    assert numbers["longest sequence"] == "64 tokens"
    assert numbers["learns"] == "column out"
    assert not {"rollout", "rewards", "log-prob gap", "prompts per step"} & numbers.keys()
