"""The layouts of a run: what the configuration asks for, and the order of the training ranks."""

from dataclasses import replace

from mindrl.allocation.from_config import role_layout, rollout_layout, train_layout
from mindrl.allocation.layout import TrainLayout
from mindrl.config.layout_sizes import Role
from mindrl.config.run import RunConfig
from mindrl.launch.shipped import planned_description, sizes_path
from mindrl.models.decoder import DType
from mindrl.resharding.plan import Topology
from mindrl.resharding.rank_map import choose_orders


def topology(config: RunConfig) -> Topology:
    """Say which ranks share a machine."""
    resource = config.rl_config.actor_resource
    return Topology(ranks_per_node=min(resource.npus_per_node, resource.num_npus))


def train_dtype(config: RunConfig) -> DType:
    """Return the type of the training weights."""
    return "bfloat16" if config.megatron_training.bf16 else "float32"


def ordered_train_layout(config: RunConfig) -> TrainLayout:
    """Return the actor's layout with the order that `generate_config.rank_map` asks for.

    Driver and workers call this alike: it depends on the configuration and on config.json alone.
    """
    layout = train_layout(config)
    if config.generate_config.rank_map == "default":
        return layout
    return choose_orders(
        # Sizes are enough: whether the model can be run is asked elsewhere.
        planned_description(sizes_path(config, "actor")),
        layout,
        rollout_layout(config),
        topology(config),
        dtypes=(train_dtype(config), config.generate_config.dtype),
    ).layout


def role_layouts(config: RunConfig) -> dict[Role, TrainLayout]:
    """Return the layout of each role that the run has.

    A role with the actor's sizes takes its order too: then they share their process groups.
    """
    actor = ordered_train_layout(config)
    layouts: dict[Role, TrainLayout] = {}
    for role in config.roles:
        own = role_layout(config, role)
        same_sizes = own == replace(actor, order=None, expert_order=None)
        layouts[role] = actor if same_sizes else own
    return layouts
