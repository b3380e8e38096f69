"""The layouts that a configuration asks for."""

from mindrl.config.layout_sizes import Role
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout


def role_layout(config: RunConfig, role: Role) -> TrainLayout:
    """Return the training layout of a role, in Megatron's own order.

    Args:
        config: Without findings.
        role: One that the run does not have lies in the actor's layout.
    """
    sizes = config.layout_sizes(role)
    return TrainLayout(
        tp=sizes.tp,
        cp=sizes.cp,
        pp=sizes.pp,
        vpp=sizes.vpp,
        dp=config.data_parallel_size(role),
        ep=sizes.ep,
        etp=sizes.etp,
        layers_per_chunk=sizes.layers_per_chunk,
    )


def train_layout(config: RunConfig) -> TrainLayout:
    """Return the actor's layout, as `role_layout`."""
    return role_layout(config, "actor")


def reference_layout(config: RunConfig) -> TrainLayout:
    """Return the reference's layout, as `role_layout`."""
    return role_layout(config, "ref")


def critic_layout(config: RunConfig) -> TrainLayout:
    """Return the critic's layout, as `role_layout`."""
    return role_layout(config, "critic")


def reward_layout(config: RunConfig) -> TrainLayout:
    """Return the reward model's layout, as `role_layout`."""
    return role_layout(config, "reward")


def rollout_layout(config: RunConfig) -> RolloutLayout:
    """Return the rollout layout.

    Args:
        config: Without findings.
    """
    generate = config.generate_config
    return RolloutLayout(
        tp=generate.infer_tensor_parallel_size,
        pp=generate.infer_pipeline_parallel_size,
        dp=config.rollout_data_parallel_size,
        ep=generate.infer_expert_parallel_size,
    )
