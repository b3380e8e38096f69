"""The layouts that a configuration asks for."""

from collections.abc import Callable
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout

MakeConfig = Callable[..., RunConfig]


def test_sixteen_devices_are_laid_out_as_the_sections_say(run_config: MakeConfig) -> None:
    config = run_config(
        Path("model"),
        {
            "rl_config.actor_resource.num_npus": 16,
            "actor_config.tensor_model_parallel_size": 4,
            "actor_config.expert_model_parallel_size": 8,
            "actor_config.expert_tensor_parallel_size": 2,
            "generate_config.infer_tensor_parallel_size": 8,
            "generate_config.infer_expert_parallel_size": 8,
        },
    )
    assert config.layout("actor") == TrainLayout(tp=4, dp=4, ep=8, etp=2)
    assert config.layout("actor").expert_dp == 1
    assert config.rollout_layout == RolloutLayout(tp=8, dp=2, ep=8)


def test_a_replica_of_the_rollout_has_as_many_ranks_as_its_stages_together(
    run_config: MakeConfig,
) -> None:
    config = run_config(
        Path("model"),
        {
            "rl_config.actor_resource.num_npus": 8,
            "generate_config.infer_tensor_parallel_size": 2,
            "generate_config.infer_pipeline_parallel_size": 2,
        },
    )
    assert config.rollout_layout == RolloutLayout(tp=2, pp=2, dp=2)


def test_by_default_one_device_holds_everything_and_experts_are_whole(
    run_config: MakeConfig,
) -> None:
    config = run_config(Path("model"))
    assert config.layout("actor") == TrainLayout()
    assert config.rollout_layout == RolloutLayout()


def test_roles_lie_in_the_actors_layout_unless_they_say_otherwise(run_config: MakeConfig) -> None:
    sizes = {
        "rl_config.actor_resource.num_npus": 8,
        "actor_config.tensor_model_parallel_size": 2,
        "actor_config.pipeline_model_parallel_size": 2,
        "actor_config.num_layer_list": [1, 3],
        "critic_config.lr": 1e-5,
        "reward_config.load": "judge",
    }
    same = run_config(Path("model"), sizes)
    wanted = TrainLayout(tp=2, pp=2, dp=2, layers_per_chunk=(1, 3))
    assert same.layout("actor") == wanted
    assert same.layout("critic") == same.layout("ref") == same.layout("reward") == wanted
    own = {
        "critic_config.tensor_model_parallel_size": 4,
        "ref_config.pipeline_model_parallel_size": 4,
        "reward_config.num_layer_list": [2, 2],
    }
    apart = run_config(Path("model"), sizes | own)
    assert apart.layout("critic") == TrainLayout(tp=4, pp=2, dp=1, layers_per_chunk=(1, 3))
    # The actor's two sizes say nothing of four stages: they are cut evenly.
    assert apart.layout("ref") == TrainLayout(tp=2, pp=4, dp=1)
    assert apart.layout("reward") == TrainLayout(tp=2, pp=2, dp=2, layers_per_chunk=(2, 2))


def test_roles_that_the_run_does_not_have_lie_in_the_actors_layout(run_config: MakeConfig) -> None:
    config = run_config(Path("model"))
    assert config.layout("critic") == config.layout("reward") == config.layout("actor")
