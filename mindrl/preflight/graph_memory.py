"""Estimated memory of the rollout engine's graphs. Needs no torch."""

from mindrl.platform.device import planned_platform
from mindrl.platform.device_engine import graph_limits
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rollout.planning import captures, layers_of_ranks


def graph_bytes(plan: RunPlan) -> int:
    """Estimate the bytes of graphs on the device with most layers; 0 without graphs.

    Each layer takes the same in each captured size; those of a draft model count too. Servers
    that others started are not counted, and an engine that returns routes captures nothing.
    """
    config, generate = plan.config, plan.config.generate_config
    if not config.rolls_out or generate.is_served or config.actor_config.router_replay == "R3":
        return 0
    platform = planned_platform(config.rl_config.device)
    layers = max(layers_of_ranks(plan.models["actor"], plan.replica))
    if plan.draft is not None:
        layers += plan.draft.num_hidden_layers
    return captures(generate, platform).number * layers * graph_limits(platform).layer_bytes
