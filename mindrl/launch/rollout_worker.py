"""Build a rollout worker from the plan of a run. Import only in a prepared worker process."""

import torch.distributed as dist

from mindrl.errors import DeviceMemoryError
from mindrl.launch.link_routes import link_routes
from mindrl.launch.worker import rollout_engine
from mindrl.launch.worker_device import capacity_of, with_any_kv_cache
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import Region
from mindrl.models.placement import ShardingTable
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform
from mindrl.platform.device_engine import make_batch_invariant
from mindrl.preflight.memory_plan import memory_plan, too_small
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import RolloutRegion
from mindrl.workers.rollout_worker import RolloutWorker
from mindrl.workers.weight_links import LinkEnd, ReceivingEnd


def build_rollout_worker(plan: RunPlan, platform: Platform) -> RolloutWorker:
    """Build this rank of a replica. A collective over the default group, which is the replica's.

    Raises:
        ModelError: The actor's folder contains no supported model.
        DeviceMemoryError: The engine does not fit the device.
    """
    shardings = RunShardings(plan=plan)
    memory = rollout_memory_plan(shardings, capacity_of(plan, platform.device_type))
    rank, routes = plan.config.world_size + dist.get_rank(), link_routes(shardings)
    worker = _worker(shardings, platform, memory, routes.target.table(rank))
    worker.end = ReceivingEnd(LinkEnd(platform=platform, routes=routes, rank=rank))
    worker.in_flight_bytes = int(shardings.staging[rank])
    return worker


def build_rollout_only_worker(plan: RunPlan, platform: Platform) -> RolloutWorker:
    """Build this rank of a run that only rolls out, with the weights of the actor's folder.

    A collective over the default process group, which contains all replicas. Raises as above.
    """
    shardings = RunShardings(plan=plan)
    memory = memory_plan(shardings, capacity_of(plan, platform.device_type))
    worker = _worker(shardings, platform, memory, shardings.rollout.table(dist.get_rank()))
    worker.load_weights(plan.config.actor_config.load, 0)
    return worker


def _worker(
    shardings: RunShardings, platform: Platform, asked: MemoryPlan, table: ShardingTable
) -> RolloutWorker:
    """Build a worker without a link, with its engine and memory ledger."""
    plan, memory = shardings.plan, with_any_kv_cache(shardings, asked)
    if plan.config.megatron_training.is_deterministic:
        make_deterministic()
    if plan.config.generate_config.batch_invariant:
        make_batch_invariant(platform)
    if plan.config.rl_config.check_memory and not memory.fits:
        raise DeviceMemoryError(too_small(memory))
    kv_cache_bytes = int(memory.regions[Region.KV_CACHE][dist.get_rank()])
    engine = rollout_engine(plan, platform, kv_cache_bytes)
    ledger = DeviceLedger(memory.capacity_bytes)
    ledger.add(Region.ROLLOUT_WEIGHTS, RolloutRegion(engine, "weights"))
    ledger.add(Region.KV_CACHE, RolloutRegion(engine, "kv_cache"))
    return RolloutWorker(
        inference_model=engine,
        table=table,
        ledger=ledger,
        plan=memory,
        vocabulary=plan.models["actor"].vocab_size,
    )
