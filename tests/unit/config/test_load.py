"""From plain mappings to the frozen configuration, or to messages that help."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml
from omegaconf import OmegaConf

from mindrl.batch.balance import MicroBatching
from mindrl.config.changed import with_absolute_paths
from mindrl.config.load import load_run_config, sections
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
MODEL = Path("model")
REQUIRED: dict[str, dict[str, Any]] = {
    "megatron_training": {
        "train_iters": 3,
        "global_batch_size": 4,
        "seq_length": 64,
        "data_path": "train.jsonl",
    },
    "actor_config": {"load": "model"},
    "rl_config": {"mini_batch_size": 2},
    "generate_config": {},
}


def limits_of(hint: Any, found: frozenset[str] = frozenset()) -> list[frozenset[str]]:
    """Return the kinds of bounds of each number in a type."""
    if get_origin(hint) is Literal:
        return []
    if hasattr(hint, "__metadata__"):
        limits = (each for meta in hint.__metadata__ for each in getattr(meta, "metadata", []))
        found = found.union(type(each).__name__[0] for each in limits)
    if hint in (int, float):
        return [found]
    return [each for inner in get_args(hint) for each in limits_of(inner, found)]


def test_each_number_has_a_least_and_a_largest_value() -> None:
    open_ended = []
    for path, section in sections(RunConfig).items():
        for name, hint in get_type_hints(section, include_extras=True).items():
            if any(limits != {"G", "L"} for limits in limits_of(hint)):
                open_ended.append(".".join((*path, name)))
    assert open_ended == []


def test_six_values_are_enough_and_the_rest_has_defaults() -> None:
    config = load_run_config(REQUIRED)
    assert config.actor_config.lr == 1e-6
    assert config.rl_config.verifier_function == ("math_verify", "boxed_format")
    assert config.generate_config.sampling_config.max_tokens == 128


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        # A typing error.
        ("rl_config.n_sampels_per_prompt", "did you mean rl_config.n_samples_per_prompt?"),
        ("generate_config.infer_tensor_paralel_size", "infer_tensor_parallel_size?"),
        ("generate_config.sampling_config.temperature_value", "sampling_config.temperature?"),
        ("rl_config.actor_resource.num_npu", "did you mean rl_config.actor_resource.num_npus?"),
        # The beginning of a long name.
        ("rl_config.n_samples", "did you mean rl_config.n_samples_per_prompt?"),
        ("actor_config.tensor_model_parallel", "actor_config.tensor_model_parallel_size?"),
        # A key that lives in another section.
        ("rl_config.lr", "did you mean actor_config.lr?"),
        ("actor_config.seq_length", "did you mean megatron_training.seq_length?"),
        ("rl_config.sampling_config", "did you mean generate_config.sampling_config?"),
        # A key that lives one level deeper.
        ("generate_config.temperature", "generate_config.sampling_config.temperature?"),
        ("rl_config.num_npus", "did you mean rl_config.actor_resource.num_npus?"),
        # A section.
        ("rl_cofig", "did you mean rl_config?"),
        # Nothing like it anywhere.
        ("actor_config.zzz", "nearest: actor_config."),
        ("generate_config.sampling_config.zzz", "; `mindrl train-grpo --cfg job` prints all keys"),
        ("zzz", "write the section first, as in rl_config.device; sections: megatron_training, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_probably_meant(
    key: str, hint: str, run_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(MODEL, {key: 1})
    assert str(caught.value).startswith(f"{key} is not a configuration key; ")
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("megatron_training.train_iters", "3", '="3" must be a valid integer'),
        ("megatron_training.train_iters", 3.0, "=3.0 must be a valid integer"),
        ("megatron_training.train_iters", True, "=true must be a valid integer"),
        ("megatron_training.bf16", "true", '="true" must be a valid boolean'),
        ("megatron_training.bf16", 1, "=1 must be a valid boolean"),
        ("actor_config.lr", "1e-6", '="1e-6" must be a valid number'),
        ("actor_config.load", 7, "=7 must be a valid string"),
        ("actor_config.load", None, "=null must be a valid string"),
        ("rl_config.actor_resource", 8, "=8 must be a section with keys"),
        ("rl_config.verifier_function", "f", '="f" must be a list'),
        ("rl_config.verifier_function", ["f", 1], ".1=1 must be a valid string"),
    ],
)
def test_a_value_of_another_type_is_refused_and_never_converted(
    key: str, value: object, message: str, run_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(MODEL, {key: value})
    assert str(caught.value) == f"{key}{message}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("megatron_training.train_iters", 0, "=0 must be greater than or equal to 1"),
        ("megatron_training.seed", -1, "=-1 must be greater than or equal to 0"),
        ("actor_config.lr", 0.0, "=0.0 must be greater than 0"),
        ("actor_config.lr", float("nan"), "=NaN must be a finite number"),
        ("actor_config.lr", float("inf"), "=Infinity must be a finite number"),
        ("actor_config.adam_beta1", 1.0, "=1.0 must be less than 1"),
        ("rl_config.clip_ratio", 1.0, "=1.0 must be less than 1"),
        ("rl_config.use_integrated_worker", 0, "=0 must be a valid boolean"),
        ("rl_config.step_order", 1, "=1 must be 'in_turns', 'one_step_off' or 'asynchronous'"),
        ("rl_config.verifier_timeout", 0.0, "=0.0 must be greater than 0"),
        ("rl_config.verifier_parallel", 0, "=0 must be greater than or equal to 1"),
        ("rl_config.device", "tpu", "=\"tpu\" must be 'auto', 'npu', 'gpu' or 'cpu'"),
        ("generate_config.dtype", "float16", "=\"float16\" must be 'bfloat16' or 'float32'"),
        ("generate_config.gpu_memory_utilization", 1.5, "=1.5 must be less than or equal to 1"),
        (
            "generate_config.sampling_config.temperature",
            0,
            "=0 must be greater than or equal to 0.01",
        ),
        ("generate_config.sampling_config.top_k", -2, "=-2 must be greater than or equal to -1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    key: str, value: object, message: str, run_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(MODEL, {key: value})
    assert str(caught.value) == f"{key}{message}"


@pytest.mark.parametrize("section", sorted(REQUIRED))
def test_a_missing_section_is_named(section: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config({name: values for name, values in REQUIRED.items() if name != section})
    assert str(caught.value) == f"{section} is missing and has no default"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (section, key)
        for section, values in REQUIRED.items()
        for key in values
        if key != "data_path"  # or data_config.train_sets
    ],
)
def test_each_required_value_is_named_where_it_is_missing(section: str, key: str) -> None:
    rest = {name: value for name, value in REQUIRED[section].items() if name != key}
    with pytest.raises(ConfigError) as caught:
        load_run_config(REQUIRED | {section: rest})
    assert str(caught.value) == f"{section}.{key} is missing and has no default"


def test_all_that_is_wrong_is_said_at_once_one_finding_a_line(run_config: MakeConfig) -> None:
    wrong = {
        "megatron_training.train_iters": 0,
        "megatron_training.data_path": 5,
        "actor_config.lrr": 1e-6,
        "rl_config.device": "tpu",
        "generate_config.sampling_config.top_p": 2.0,
    }
    with pytest.raises(ConfigError) as caught:
        run_config(MODEL, wrong)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert {line.split("=")[0].split(" is ")[0] for line in lines} == set(wrong)


def test_1e_6_in_a_hydra_file_is_a_float_though_plain_yaml_reads_a_string() -> None:
    text = "lr: 1e-6"
    assert yaml.safe_load(text) == {"lr": "1e-6"}
    actor = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(actor, dict)

    config = load_run_config(REQUIRED | {"actor_config": {"load": "model"} | actor})

    assert config.actor_config.lr == 1e-6
    assert type(config.actor_config.lr) is float


def test_an_integer_stands_for_a_float_and_a_list_for_a_tuple(run_config: MakeConfig) -> None:
    config = run_config(MODEL, {"actor_config.clip_grad": 2, "rl_config.verifier_weight": [1, 0.5]})
    assert type(config.actor_config.clip_grad) is float
    assert config.rl_config.verifier_weight == (1.0, 0.5)


def test_a_loaded_configuration_cannot_be_changed(run_config: MakeConfig) -> None:
    config = run_config(MODEL)
    with pytest.raises(FrozenInstanceError):
        config.actor_config.lr = 1.0  # type: ignore[misc]


def test_the_numbers_that_follow_are_those_of_two_replicas_and_eight_updates(
    run_config: MakeConfig,
) -> None:
    config = run_config(
        MODEL,
        {
            "megatron_training.train_iters": 10,
            "megatron_training.global_batch_size": 32,
            "rl_config.mini_batch_size": 8,
            "rl_config.n_samples_per_prompt": 5,
            "rl_config.epochs": 2,
            "rl_config.actor_resource.num_npus": 8,
            "actor_config.tensor_model_parallel_size": 4,
            "generate_config.infer_tensor_parallel_size": 2,
        },
    )
    assert (config.layout("actor").dp, config.rollout_layout.dp) == (2, 4)
    assert (config.sequences_per_step, config.sequences_per_update) == (160, 40)
    assert (config.updates_per_step, config.total_updates("actor")) == (8, 80)


def test_tokenizer_and_reference_come_from_the_actor_unless_they_are_named(
    run_config: MakeConfig,
) -> None:
    plain = run_config(MODEL)
    named = run_config(
        MODEL,
        {
            "megatron_training.tokenizer_name_or_path": "tokens",
            "rl_config.integrated_mode_config.ref_model_load_path": "reference",
            "rl_config.init_kl_coef": 0.1,
        },
    )
    assert (plain.tokenizer_path, plain.model_path("ref"), plain.uses_reference) == (
        "model",
        "model",
        False,
    )
    assert (named.tokenizer_path, named.model_path("ref"), named.uses_reference) == (
        "tokens",
        "reference",
        True,
    )


CRITIC = {"rl_config.adv_estimator": "gae", "critic_config.lr": 1e-5}


def test_the_critics_model_comes_from_the_actor_unless_it_is_named(run_config: MakeConfig) -> None:
    taken = run_config(MODEL, CRITIC)
    assert (taken.model_path("critic"), taken.model_key("critic")) == ("model", "actor_config.load")
    named = run_config(MODEL, CRITIC | {"critic_config.load": "values"})
    assert (named.model_path("critic"), named.model_key("critic")) == (
        "values",
        "critic_config.load",
    )
    assert named.roles == ("actor", "critic")


def test_either_name_of_the_references_folder_will_do(run_config: MakeConfig) -> None:
    theirs = "rl_config.integrated_mode_config.ref_model_load_path"
    for key in (theirs, "ref_config.load"):
        config = run_config(MODEL, {key: "reference"})
        assert (config.model_path("ref"), config.model_key("ref")) == ("reference", key)


def test_micro_batches_of_a_role_are_its_own_then_the_actors(run_config: MakeConfig) -> None:
    sizes = CRITIC | {"actor_config.micro_batch_size": 8, "reward_config.load": "judge"}
    plain = run_config(MODEL, sizes)
    assert plain.micro_batching("critic", learns=True) == MicroBatching(sequences=8)
    assert plain.micro_batching("critic", learns=False) == MicroBatching(sequences=8)
    assert plain.micro_batching("reward", learns=False) == MicroBatching(sequences=8)
    own = run_config(
        MODEL,
        sizes
        | {
            "critic_config.micro_batch_size": 4,
            "rl_config.critic_forward_micro_batch_size": 16,
            "reward_config.micro_batch_size": 2,
        },
    )
    assert own.micro_batching("critic", learns=True) == MicroBatching(sequences=4)
    assert own.micro_batching("critic", learns=False) == MicroBatching(sequences=16)
    assert own.micro_batching("reward", learns=False) == MicroBatching(sequences=2)
    assert own.micro_batching("actor", learns=True) == MicroBatching(sequences=8)


def test_budgets_of_tokens_are_a_role_s_own_then_the_general_one(run_config: MakeConfig) -> None:
    config = run_config(
        MODEL,
        CRITIC
        | {
            "rl_config.use_dynamic_bsz": True,
            "rl_config.max_packing_token_size": 512,
            "rl_config.ref_max_packing_token_size": 256,
            "rl_config.update_max_packing_token_size": 128,
        },
    )
    assert config.micro_batching("actor", learns=True).tokens == 128
    assert config.micro_batching("critic", learns=True).tokens == 512
    assert config.micro_batching("ref", learns=False).tokens == 256
    assert config.micro_batching("actor", learns=False).tokens == 512


def test_a_kl_term_is_in_the_loss_or_in_the_reward_never_in_both(run_config: MakeConfig) -> None:
    weight = CRITIC | {"rl_config.init_kl_coef": 0.25}
    loss = run_config(MODEL, weight)
    assert (loss.loss_kl_coef, loss.reward_kl_coef) == (0.25, 0.0)
    reward = run_config(MODEL, weight | {"rl_config.use_kl_in_reward": True})
    assert (reward.loss_kl_coef, reward.reward_kl_coef) == (0.0, 0.25)


def test_warm_up_steps_are_the_critics_alone(run_config: MakeConfig) -> None:
    """Ten steps of two updates each, three of them without the actor."""
    config = run_config(
        MODEL,
        CRITIC
        | {
            "megatron_training.train_iters": 10,
            "rl_config.mini_batch_size": 2,
            "rl_config.critic_warmup": 3,
        },
    )
    assert (config.total_updates("actor"), config.total_updates("critic")) == (14, 20)


def test_the_paths_of_all_models_are_made_absolute(run_config: MakeConfig) -> None:
    named = CRITIC | {
        "critic_config.load": "values",
        "ref_config.load": "reference",
        "reward_config.load": "judge",
        "actor_config.lora.load": "adapter",
        "generate_config.speculative_config.model": "draft",
        "data_config.images.folder": "pictures",
    }
    config = with_absolute_paths(run_config(MODEL, named))
    for role, name in (
        ("actor", "model"),
        ("ref", "reference"),
        ("critic", "values"),
        ("reward", "judge"),
    ):
        assert config.model_path(role) == str(Path.cwd() / name)
    assert config.actor_config.lora.load == str(Path.cwd() / "adapter")
    assert config.generate_config.speculative_config.model == str(Path.cwd() / "draft")
    assert config.data_config.images.folder == str(Path.cwd() / "pictures")
    assert with_absolute_paths(run_config(MODEL, CRITIC)).model_key("critic") == "actor_config.load"


def test_a_section_that_may_be_left_out_refuses_unknown_keys_too(run_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(MODEL, {"critic_config.learning_rate": 1e-5, "reward_config.weights": 1.0})
    assert str(caught.value).splitlines() == [
        (
            "critic_config.learning_rate is not a configuration key; nearest: "
            "critic_config.offload_train_grad, critic_config.lr_warmup_fraction, "
            "critic_config.clip_grad; `mindrl train-grpo --cfg job` prints all keys"
        ),
        "reward_config.load is missing and has no default",
        "reward_config.weights is not a configuration key; did you mean reward_config.weight?",
    ]
