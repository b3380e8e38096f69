"""Each rule between fields, and what is just inside the rule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.finding import nearest_divisors
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]
DEVICES = "rl_config.actor_resource.num_npus"
TRAIN_TP = "actor_config.tensor_model_parallel_size"
TRAIN_CP = "actor_config.context_parallel_size"
TRAIN_PP = "actor_config.pipeline_model_parallel_size"
ROLLOUT_TP = "generate_config.infer_tensor_parallel_size"
BATCH = "megatron_training.global_batch_size"
MINI = "rl_config.mini_batch_size"
ESTIMATOR = "rl_config.adv_estimator"
SAMPLES = "rl_config.n_samples_per_prompt"
HELD_OUT = "megatron_training.test_data_path"
RESPONSE = "generate_config.sampling_config.max_tokens"


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), overrides))]


def test_the_base_configuration_of_these_tests_has_no_findings(run_config: MakeConfig) -> None:
    assert found(run_config, {}) == []


@pytest.mark.parametrize("field", [TRAIN_TP, ROLLOUT_TP])
def test_a_tensor_parallel_size_must_divide_the_devices(field: str, run_config: MakeConfig) -> None:
    assert found(run_config, {DEVICES: 8, field: 3}) == [field]
    assert found(run_config, {DEVICES: 8, field: 16}) == [field]
    assert found(run_config, {DEVICES: 8, field: 4}) == []


def test_all_that_shares_a_copy_of_the_model_must_divide_the_devices_together(
    run_config: MakeConfig,
) -> None:
    sizes = {TRAIN_TP: 2, TRAIN_CP: 2, TRAIN_PP: 2, DEVICES: 8}
    assert found(run_config, sizes) == []
    assert run_config(Path("model"), sizes).layout("actor").dp == 1
    assert found(run_config, sizes | {TRAIN_CP: 3}) == [TRAIN_CP]


def test_the_experts_grid_is_one_of_each_pipeline_stage(run_config: MakeConfig) -> None:
    ep = "actor_config.expert_model_parallel_size"
    assert found(run_config, {DEVICES: 8, TRAIN_PP: 2, ep: 4}) == []
    assert found(run_config, {DEVICES: 8, TRAIN_PP: 2, ep: 8}) == [ep]


def test_a_token_budget_holds_the_longest_sequence_and_needs_packing(
    run_config: MakeConfig,
) -> None:
    lengths = {"rl_config.max_prompt_length": 24, RESPONSE: 40}
    dynamic = lengths | {"rl_config.use_dynamic_bsz": True}
    budget = "rl_config.max_packing_token_size"
    assert found(run_config, dynamic | {budget: 64}) == []
    assert found(run_config, lengths | {budget: 63}) == []
    assert found(run_config, dynamic | {budget: 63}) == [budget]
    for field, value in {"ref_max_packing_token_size": 8, "use_remove_padding": False}.items():
        assert found(run_config, dynamic | {f"rl_config.{field}": value}) == [f"rl_config.{field}"]


def test_full_recomputation_says_how_and_no_other_does(run_config: MakeConfig) -> None:
    granularity, method, layers = (
        f"actor_config.recompute_{name}" for name in ("granularity", "method", "num_layers")
    )
    assert found(run_config, {granularity: "selective"}) == []
    assert found(run_config, {granularity: "full", method: "block", layers: 1}) == []
    assert found(run_config, {granularity: "full", layers: 1}) == [method]
    assert found(run_config, {granularity: "selective", layers: 2}) == [layers]


def test_sequence_parallelism_needs_tensor_parallelism(run_config: MakeConfig) -> None:
    switch = {"megatron_training.sequence_parallel": True, DEVICES: 2}
    assert found(run_config, switch) == ["megatron_training.sequence_parallel"]
    assert found(run_config, switch | {TRAIN_TP: 2}) == []


def test_the_experts_grid_must_divide_the_devices(run_config: MakeConfig) -> None:
    ep, etp = "actor_config.expert_model_parallel_size", "actor_config.expert_tensor_parallel_size"
    assert found(run_config, {DEVICES: 8, ep: 4, etp: 2, MINI: 2}) == []
    assert found(run_config, {DEVICES: 8, ep: 3, MINI: 2}) == [ep]
    assert found(run_config, {DEVICES: 8, etp: 16, MINI: 2}) == [etp]
    assert found(run_config, {DEVICES: 8, ep: 3, etp: 2, MINI: 2}) == [ep]


def test_the_rollout_shares_experts_inside_a_replica_or_not_at_all(run_config: MakeConfig) -> None:
    ep = "generate_config.infer_expert_parallel_size"
    on_8 = {DEVICES: 8, ROLLOUT_TP: 4, MINI: 2}
    for size in (1, 4):
        assert found(run_config, on_8 | {ep: size}) == []
    for size in (2, 8):
        assert found(run_config, on_8 | {ep: size}) == [ep]


def test_ranks_that_share_experts_get_equal_shares_of_every_update_and_so_of_every_step(
    run_config: MakeConfig,
) -> None:
    """Else one of them would wait for others that have no more micro-batches."""
    ep = {"actor_config.expert_model_parallel_size": 4, DEVICES: 4}
    assert len(found(run_config, ep | {MINI: 1, SAMPLES: 6})) == 1
    even = ep | {BATCH: 12, MINI: 2, SAMPLES: 6}
    assert found(run_config, even) == []
    config = run_config(Path("model"), even)
    # A batch is whole mini-batches: 12 sequences an update and 72 a step, 3 and 18 a rank.
    assert (config.sequences_per_update, config.sequences_per_step) == (12, 72)


def test_the_mini_batch_must_divide_the_batch(run_config: MakeConfig) -> None:
    assert found(run_config, {BATCH: 32, MINI: 12}) == [MINI]
    assert found(run_config, {BATCH: 32, MINI: 64}) == [MINI]
    assert found(run_config, {BATCH: 32, MINI: 8}) == []


def test_a_huge_batch_is_judged_at_once(run_config: MakeConfig) -> None:
    assert found(run_config, {BATCH: 10**6, MINI: 7}) == [MINI]


def test_the_sequences_of_an_update_must_divide_over_the_replicas(run_config: MakeConfig) -> None:
    uneven = {DEVICES: 8, MINI: 2, SAMPLES: 6}
    assert found(run_config, uneven) == [MINI]
    # Four replicas of two ranks each: 12 sequences are 3 for each.
    assert found(run_config, uneven | {TRAIN_TP: 2}) == []


@pytest.mark.parametrize("name", ["group_norm", "rloo"])
def test_one_response_per_prompt_has_no_group_to_be_compared_with(
    name: str, run_config: MakeConfig
) -> None:
    chosen = {ESTIMATOR: name}
    assert found(run_config, chosen | {SAMPLES: 1}) == [SAMPLES]
    assert found(run_config, chosen | {SAMPLES: 2}) == []


def test_an_estimator_without_a_group_needs_one_response(run_config: MakeConfig) -> None:
    for name in ("reinforce_plus_plus", "own.package:estimator"):
        assert found(run_config, {ESTIMATOR: name, SAMPLES: 1}) == []


@pytest.mark.parametrize("field", ["megatron_training.seq_length", "generate_config.max_model_len"])
def test_a_prompt_of_32_and_a_response_of_33_need_65_tokens(
    field: str, run_config: MakeConfig
) -> None:
    wide = {"megatron_training.seq_length": 65, "generate_config.max_model_len": 65}
    assert found(run_config, wide | {RESPONSE: 33}) == []
    assert found(run_config, wide | {RESPONSE: 33, field: 64}) == [field]


def test_an_engine_step_must_hold_a_token_of_every_sequence(run_config: MakeConfig) -> None:
    tokens = "generate_config.max_num_batched_tokens"
    assert found(run_config, {tokens: 63}) == [tokens]
    assert found(run_config, {tokens: 64}) == []


@pytest.mark.parametrize(
    ("functions", "weights"), [(["f", "g"], [1.0]), (["f"], [1.0, 0.5]), ([], [])]
)
def test_each_reward_needs_one_weight(
    functions: list[str], weights: list[float], run_config: MakeConfig
) -> None:
    overrides = {"rl_config.verifier_function": functions, "rl_config.verifier_weight": weights}
    assert found(run_config, overrides) == ["rl_config.verifier_weight"]


def test_a_reward_is_named_once(run_config: MakeConfig) -> None:
    functions = {"rl_config.verifier_function": ["f", "g", "f"]}
    weights = {"rl_config.verifier_weight": [1.0, 1.0, 1.0]}
    assert found(run_config, functions | weights) == ["rl_config.verifier_function"]


def test_the_learning_rate_may_not_decay_upwards(run_config: MakeConfig) -> None:
    assert found(run_config, {"actor_config.lr": 1e-6, "actor_config.min_lr": 2e-6}) == [
        "actor_config.min_lr"
    ]
    assert found(run_config, {"actor_config.lr": 1e-6, "actor_config.min_lr": 1e-6}) == []


def test_experts_are_grouped_in_bfloat16_only(run_config: MakeConfig) -> None:
    grouped = {"actor_config.moe_grouped_gemm": True}
    assert found(run_config, grouped | {"megatron_training.bf16": False}) == [
        "actor_config.moe_grouped_gemm"
    ]
    assert found(run_config, grouped | {"megatron_training.bf16": True}) == []


def test_evaluation_needs_held_out_prompts(run_config: MakeConfig) -> None:
    assert found(run_config, {"rl_config.test_freq": 10}) == ["rl_config.test_freq"]
    held_out = {HELD_OUT: "test.jsonl"}
    assert found(run_config, {"rl_config.test_freq": 10} | held_out) == []


def test_findings_of_all_rules_come_together(run_config: MakeConfig) -> None:
    wrong = {DEVICES: 8, TRAIN_TP: 3, SAMPLES: 1, RESPONSE: 33, "rl_config.test_freq": 10}
    # One of devices, one of the group, two of lengths, one of evaluation.
    assert len(found(run_config, wrong)) == 5


GAE: dict[str, Any] = {"rl_config.adv_estimator": "gae", "critic_config.lr": 1e-5}
"""A run with a critic that takes its model and its layout from the actor."""


def test_a_critic_is_there_exactly_where_advantages_come_from_one(run_config: MakeConfig) -> None:
    assert found(run_config, GAE) == []
    assert found(run_config, {"rl_config.adv_estimator": "gae"}) == ["critic_config"]
    assert found(run_config, {"critic_config.lr": 1e-5}) == ["critic_config"]


def test_with_a_critic_one_response_per_prompt_is_enough(run_config: MakeConfig) -> None:
    assert found(run_config, GAE | {SAMPLES: 1}) == []


def test_what_only_a_critic_gives_a_meaning_is_refused_without_one(run_config: MakeConfig) -> None:
    choices = {"rl_config.critic_warmup": 1}
    assert found(run_config, choices) == ["rl_config.critic_warmup"]
    assert found(run_config, GAE | choices) == []


def test_the_actor_learns_in_the_last_step_at_least(run_config: MakeConfig) -> None:
    assert found(run_config, GAE | {"rl_config.critic_warmup": 2}) == []
    assert found(run_config, GAE | {"rl_config.critic_warmup": 3}) == ["rl_config.critic_warmup"]


def test_a_role_is_judged_by_its_own_sizes_and_by_the_actors_it_takes(
    run_config: MakeConfig,
) -> None:
    critic = GAE | {DEVICES: 8, TRAIN_TP: 4}
    for size in ("pipeline", "tensor"):
        field = f"critic_config.{size}_model_parallel_size"
        assert found(run_config, critic | {field: 3}) == [field]
    # Two roles take the actor's size: it is named once.
    both = critic | {TRAIN_TP: 3, "rl_config.init_kl_coef": 0.1}
    assert found(run_config, both) == [TRAIN_TP]


def test_a_reference_that_is_not_used_is_not_judged(run_config: MakeConfig) -> None:
    sizes = {DEVICES: 8, "ref_config.tensor_model_parallel_size": 3}
    assert found(run_config, sizes) == []
    assert len(found(run_config, sizes | {"rl_config.init_kl_coef": 0.1})) == 1


def test_a_critic_shares_updates_and_a_reward_model_steps(run_config: MakeConfig) -> None:
    """Eight devices, two replicas of the actor: 4 prompts x 1 response, in updates of 2."""
    small = GAE | {DEVICES: 8, TRAIN_TP: 4, BATCH: 4, MINI: 2, SAMPLES: 1, ROLLOUT_TP: 8}
    assert found(run_config, small) == []
    assert found(run_config, small | {"critic_config.tensor_model_parallel_size": 1}) == [MINI]
    reward = {"reward_config.load": "judge", "reward_config.tensor_model_parallel_size": 1}
    assert found(run_config, small | reward) == [BATCH]
    assert found(run_config, small | reward | {BATCH: 8}) == []


def test_a_critics_schedule_and_recomputation_are_judged_as_the_actors(
    run_config: MakeConfig,
) -> None:
    assert found(run_config, GAE | {"critic_config.min_lr": 1e-4}) == ["critic_config.min_lr"]
    assert found(run_config, GAE | {"critic_config.recompute_num_layers": 2}) == [
        "critic_config.recompute_num_layers"
    ]


def test_two_names_of_the_references_folder_must_agree(run_config: MakeConfig) -> None:
    theirs = "rl_config.integrated_mode_config.ref_model_load_path"
    assert found(run_config, {theirs: "a", "ref_config.load": "a"}) == []
    assert found(run_config, {theirs: "a", "ref_config.load": "b"}) == ["ref_config.load"]


def test_a_reward_model_may_judge_alone_where_nothing_is_evaluated(run_config: MakeConfig) -> None:
    alone: dict[str, Any] = {
        "reward_config.load": "judge",
        "rl_config.verifier_function": [],
        "rl_config.verifier_weight": [],
    }
    assert found(run_config, alone) == []
    assert found(run_config, alone | {"megatron_training.test_data_path": "test.jsonl"}) == [
        "rl_config.verifier_function"
    ]


def test_sequence_parallelism_needs_one_role_that_is_cut_by_tensors(run_config: MakeConfig) -> None:
    on = GAE | {DEVICES: 2, "megatron_training.sequence_parallel": True}
    assert len(found(run_config, on)) == 1
    assert found(run_config, on | {"critic_config.tensor_model_parallel_size": 2}) == []


@pytest.mark.parametrize(
    ("number", "value", "nearest"),
    [(28, 3, "2, 4"), (28, 5, "4, 7"), (28, 100, "28"), (7, 2, "1, 7"), (12, 5, "4, 6")],
)
def test_the_nearest_divisors_are_those_on_either_side(
    number: int, value: int, nearest: str
) -> None:
    assert nearest_divisors(number, value) == nearest
