"""The layouts that a configuration asks for."""

from collections.abc import Callable
from pathlib import Path

from mindrl.allocation.from_config import rollout_layout, train_layout
from mindrl.allocation.layout import RolloutLayout, TrainLayout
from mindrl.config.run import RunConfig

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
    assert train_layout(config) == TrainLayout(tp=4, dp=4, ep=8, etp=2)
    assert train_layout(config).expert_dp == 1
    assert rollout_layout(config) == RolloutLayout(tp=8, dp=2, ep=8)


def test_by_default_one_device_holds_everything_and_experts_are_whole(
    run_config: MakeConfig,
) -> None:
    config = run_config(Path("model"))
    assert train_layout(config) == TrainLayout()
    assert rollout_layout(config) == RolloutLayout()
