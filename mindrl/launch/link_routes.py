"""From the plan of a run to the ways of its weights to replicas that are apart."""

from mindrl.preflight.run_shardings import RunShardings
from mindrl.workers.weight_links import LinkRoutes


def link_routes(shardings: RunShardings) -> LinkRoutes:
    """Return how the weights of a run travel to its replicas, which are apart."""
    config = shardings.plan.config
    return LinkRoutes(
        source=shardings.source,
        target=shardings.rollout,
        plan_of=shardings.link,
        training_ranks=config.world_size,
        replicas=config.rollout_layout.replicas,
        timeout_seconds=config.generate_config.reshard_timeout_seconds,
        verify=config.generate_config.verify_weights,
    )
