"""The keys that the sizes of a layout are written under, by the names that the layout has."""

from typing import Literal

Role = Literal["actor", "ref", "critic", "reward"]
"""A model that lies in a training layout; its section is `<role>_config`."""

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
}
"""The section that says on which devices a role is."""
DEVICES = "rl_config.actor_resource.num_npus"
ROLLOUT_DEVICES = "rl_config.rollout_resource.num_npus"
"""Where rollout is apart; else it has those."""
