"""Configuration keys of the sizes of a layout, by the layout's own names."""

from typing import Literal

Role = Literal["actor", "ref", "critic", "reward", "teacher"]
"""A model with a training layout; its section is `<role>_config`."""
FROZEN: tuple[Role, ...] = ("ref", "reward", "teacher")
"""Roles with models that are read and never trained."""

SIZE_KEYS = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
ROLLOUT_SIZE_KEYS = {
    "tp": "infer_tensor_parallel_size",
    "pp": "infer_pipeline_parallel_size",
    "ep": "infer_expert_parallel_size",
}
RESOURCES: dict[Role, str] = {
    "actor": "rl_config.actor_resource",
    "ref": "rl_config.reference_resource",
    "critic": "rl_config.critic_resource",
    "reward": "rl_config.reward_resource",
    "teacher": "rl_config.teacher_resource",
}
"""Section of each role's devices."""
DEVICES = "rl_config.actor_resource.num_npus"
ROLLOUT_DEVICES = "rl_config.rollout_resource.num_npus"
"""Used only if rollout has its own devices."""
