"""Routes of a run's weights to replicas on their own devices."""

from dataclasses import replace

from mindrl.preflight.run_shardings import RunShardings
from mindrl.resharding.plan import ReshardPlan, plan_reshard
from mindrl.workers.weight_links import LinkRoutes


def link_routes(shardings: RunShardings) -> LinkRoutes:
    """Return the routes of a run's weights to its separate replicas."""
    config = shardings.plan.config
    routes = LinkRoutes(
        source=shardings.source,
        target=shardings.rollout,
        plan_of=shardings.link,
        training_ranks=config.world_size,
        replicas=config.rollout_layout.replicas,
        timeout_seconds=config.generate_config.reshard_timeout_seconds,
        verify=config.generate_config.verify_weights,
    )
    frozen = routes.source.frozen
    if frozen is None:
        return routes
    source, target = (side.without(frozen) for side in (routes.source, routes.target))

    def later_plan(replica: int) -> ReshardPlan:
        topology, bucket = shardings.topology_of_link(replica), shardings.plan.bucket_bytes
        return plan_reshard(source, target, topology, bucket_bytes=bucket)

    later = replace(routes, source=source, target=target, plan_of=later_plan)
    return replace(routes, later=later)
