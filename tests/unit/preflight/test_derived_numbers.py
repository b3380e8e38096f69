"""The numbers that a dry run prints."""

from collections.abc import Callable
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.derived_numbers import derived_numbers


def test_sizes_of_experts_are_shown_where_they_are_not_1(
    run_config: Callable[..., RunConfig],
) -> None:
    sizes = {
        "rl_config.actor_resource.num_npus": 8,
        "actor_config.tensor_model_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 4,
    }
    dense = derived_numbers(run_config(Path("model"), sizes), PLATFORMS["cpu"])
    assert (dense["training"], dense["rollout"]) == ("TP 2, DP 4", "TP 4, DP 2")
    experts = {
        "actor_config.expert_model_parallel_size": 4,
        "actor_config.expert_tensor_parallel_size": 2,
        "generate_config.infer_expert_parallel_size": 4,
    }
    mixture = derived_numbers(run_config(Path("model"), sizes | experts), PLATFORMS["cpu"])
    assert mixture["training"] == "TP 2, EP 4, ETP 2, DP 4"
    assert mixture["rollout"] == "TP 4, EP 4, DP 2"


def test_roles_beside_the_actor_are_shown_with_a_layout_of_their_own(
    run_config: Callable[..., RunConfig],
) -> None:
    plain = derived_numbers(run_config(Path("model")), PLATFORMS["cpu"])
    assert plain["reference"] == "none (init_kl_coef is 0)"
    assert not {"critic", "reward model"} & set(plain)
    roles = {
        "rl_config.actor_resource.num_npus": 4,
        "actor_config.tensor_model_parallel_size": 2,
        "rl_config.init_kl_coef": 0.1,
        "rl_config.adv_estimator": "gae",
        "critic_config.pipeline_model_parallel_size": 2,
        "reward_config.load": "judge",
        "reward_config.weight": 0.5,
        "reward_config.tensor_model_parallel_size": 1,
    }
    shown = derived_numbers(run_config(Path("model"), roles), PLATFORMS["cpu"])
    assert shown["reference"] == "model"
    assert shown["critic"] == "model (TP 2, PP 2, DP 1)"
    assert shown["reward model"] == "judge (TP 1, DP 4)"
    assert shown["rewards"] == "1 x math_verify, 0.1 x boxed_format, 0.5 x reward model"
