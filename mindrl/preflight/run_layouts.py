"""The layouts of a run: what the configuration asks for, and the order of the training ranks."""

from collections.abc import Iterable

from mindrl.config.layout_sizes import Role
from mindrl.config.layouts import role_layout, rollout_layout, train_layout
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import DType, Side, rollout_side, training_side
from mindrl.preflight.shipped import planned_description, sizes_path
from mindrl.resharding.cells import Cell
from mindrl.resharding.plan import Topology, cells_for_bucket
from mindrl.resharding.rank_map import choose_orders


def topology(config: RunConfig) -> Topology:
    """Say which ranks share a machine."""
    resource = config.rl_config.actor_resource
    return Topology(ranks_per_node=min(resource.npus_per_node, resource.num_npus))


def bucket_bytes(config: RunConfig) -> int:
    """Return the bound on the messages that a rank has in flight."""
    return config.generate_config.reshard_bucket_mib << 20


def train_dtype(config: RunConfig) -> DType:
    """Return the type of the training weights."""
    return "bfloat16" if config.megatron_training.bf16 else "float32"


def role_layouts(config: RunConfig) -> dict[Role, TrainLayout]:
    """Return the layout of each role that the run has, ordered as `ordered_layouts` does.

    Driver and workers come to the same: it depends on the configuration and on config.json alone.
    """
    if config.generate_config.rank_map == "default":
        return own_layouts(config)
    # Sizes are enough: whether the model can be run is asked elsewhere.
    model = planned_description(sizes_path(config, "actor"))
    source = training_side(model, train_layout(config), dtype=train_dtype(config))
    target = rollout_side(model, rollout_layout(config), dtype=config.generate_config.dtype)
    cells = cells_for_bucket(source, target, bucket_bytes(config))
    return ordered_layouts(config, source, target, cells)


def own_layouts(config: RunConfig) -> dict[Role, TrainLayout]:
    """Return the layout of each role that the run has, in Megatron's own order of the ranks."""
    return {role: role_layout(config, role) for role in config.roles}


def ordered_layouts(
    config: RunConfig, source: Side, target: Side, cells: Iterable[Cell]
) -> dict[Role, TrainLayout]:
    """Return the layout of each role in the order that `generate_config.rank_map` asks for.

    A role with the actor's sizes takes its order too: then they share their process groups.

    Args:
        config: Of the run.
        source: Who holds the actor's weights in Megatron's own order.
        target: Who needs them for rollout.
        cells: What travels between the two.
    """
    own = own_layouts(config)
    if config.generate_config.rank_map == "default":
        return own
    ordered = choose_orders(own["actor"], source, target, cells, topology(config)).layout
    return {role: ordered if each == own["actor"] else each for role, each in own.items()}
