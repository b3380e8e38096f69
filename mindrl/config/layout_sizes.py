"""The training layout of each role: its own sizes, and the actor's where it gives none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
_LAYERS = "num_layer_list"


@dataclass(frozen=True, kw_only=True)
class LayoutSizes:
    """Parallel sizes of one role, and the key that each was written under."""

    tp: int
    cp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    layers_per_chunk: tuple[int, ...] | None
    keys: Mapping[str, str] = field(compare=False)
    """By the names of the sizes, such as `tp: critic_config.tensor_model_parallel_size`."""

    @property
    def ranks_per_replica(self) -> int:
        """Workers that hold one copy of the model together."""
        return self.tp * self.cp * self.pp


def layout_sizes(role: Role, actor: ActorConfig, own: RoleLayoutConfig | None) -> LayoutSizes:
    """Fill what a role does not give with the actor's sizes.

    Args:
        role: Whose layout.
        actor: Section of the actor.
        own: Section of the role; None for the actor itself, or a section that is left out.
    """
    sizes: dict[str, Any] = {}
    keys = {}
    for name, key in SIZE_KEYS.items():
        given = getattr(own, key, None)
        sizes[name] = getattr(actor, key) if given is None else given
        keys[name] = f"{'actor' if given is None else role}_config.{key}"
    layers = own.num_layer_list if own else None
    same_chunks = (sizes["pp"], sizes["vpp"]) == (
        actor.pipeline_model_parallel_size,
        actor.virtual_pipeline_model_parallel_size,
    )
    takes_actors = layers is None and same_chunks and actor.num_layer_list is not None
    keys["layers_per_chunk"] = f"{'actor' if takes_actors else role}_config.{_LAYERS}"
    return LayoutSizes(
        **sizes, layers_per_chunk=actor.num_layer_list if takes_actors else layers, keys=keys
    )
