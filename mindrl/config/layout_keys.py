"""The keys that the sizes of a layout are written under: a role's own, or the actor's."""

from typing import Literal

from mindrl.config.actor import ActorConfig
from mindrl.config.role import RoleLayoutConfig

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
DEVICES = "rl_config.actor_resource.num_npus"
_LAYERS, _CHUNKS = "num_layer_list", (SIZE_KEYS["pp"], SIZE_KEYS["vpp"])


def layout_keys(role: Role, actor: ActorConfig, own: RoleLayoutConfig | None) -> dict[str, str]:
    """Return the key of each size of a role's training layout, such as `tp: actor_config...`.

    Args:
        role: Whose layout.
        actor: Section of the actor, whose sizes a role takes where it gives none.
        own: Section of the role; None for the actor itself, or a section that is left out.
    """

    def owner(key: str) -> str:
        return "actor" if getattr(own, key, None) is None else role

    keys = {name: f"{owner(key)}_config.{key}" for name, key in SIZE_KEYS.items()}
    same_chunks = all(getattr(own, key, None) in (None, getattr(actor, key)) for key in _CHUNKS)
    takes_actors = owner(_LAYERS) == "actor" and same_chunks and actor.num_layer_list is not None
    keys["layers_per_chunk"] = f"{'actor' if takes_actors else role}_config.{_LAYERS}"
    return keys
