"""What a run is: decided once, from its configuration and its models, and handed on."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import DType
from mindrl.models.description import ModelDescription
from mindrl.resharding.plan import Topology
from mindrl.rollout.planning import kv_bytes_per_token


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What driver and workers need to know; small enough to be sent to each of them."""

    config: RunConfig
    models: Mapping[Role, ModelDescription]
    """Of each role that the run has."""
    layouts: Mapping[Role, TrainLayout]
    """Of the same roles, the order of the ranks included."""
    rollout: RolloutLayout

    @property
    def topology(self) -> Topology:
        """Which ranks share a machine."""
        resource = self.config.rl_config.actor_resource
        return Topology(ranks_per_node=min(resource.npus_per_node, resource.num_npus))

    @property
    def bucket_bytes(self) -> int:
        """Bound on the messages that a rank has in flight."""
        return self.config.generate_config.reshard_bucket_mib << 20

    @property
    def train_dtype(self) -> DType:
        """Of the training weights."""
        return "bfloat16" if self.config.megatron_training.bf16 else "float32"

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the KV cache of a rank."""
        dtype = self.config.generate_config.dtype
        return kv_bytes_per_token(self.models["actor"], self.rollout, dtype)


def unordered_plan(config: RunConfig, models: Mapping[Role, ModelDescription]) -> RunPlan:
    """Plan a run with its ranks in the engine's own order.

    Args:
        config: Whose layouts have no findings.
        models: Of each role that the run has.
    """
    return RunPlan(
        config=config,
        models=models,
        layouts={role: config.layout(role) for role in config.roles},
        rollout=config.rollout_layout,
    )
