"""The layouts that a configuration asks for."""

from mindrl.allocation.layout import RolloutLayout, TrainLayout
from mindrl.config.run import RunConfig


def train_layout(config: RunConfig) -> TrainLayout:
    """Return the training layout, in Megatron's own order.

    Args:
        config: Without findings.
    """
    actor = config.actor_config
    return TrainLayout(
        tp=actor.tensor_model_parallel_size,
        cp=actor.context_parallel_size,
        pp=actor.pipeline_model_parallel_size,
        vpp=actor.virtual_pipeline_model_parallel_size,
        dp=config.train_data_parallel_size,
        ep=actor.expert_model_parallel_size,
        etp=actor.expert_tensor_parallel_size,
        layers_per_chunk=actor.num_layer_list,
    )


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
