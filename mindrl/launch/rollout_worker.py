"""Build a rollout worker from the plan of a run. Import only in a prepared worker process."""

from typing import Any

import torch.distributed as dist

from mindrl.errors import DeviceMemoryError
from mindrl.launch.link_routes import link_routes
from mindrl.launch.worker import capacity_of, rollout_engine, with_any_kv_cache
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import Region
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform
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
    return RolloutWorker(
        end=ReceivingEnd(LinkEnd(platform=platform, routes=routes, rank=rank)),
        table=routes.target.table(rank),
        in_flight_bytes=int(shardings.staging[rank]),
        **_parts(shardings, platform, memory),
    )


def build_rollout_only_worker(plan: RunPlan, platform: Platform) -> RolloutWorker:
    """Build this rank of a run that only rolls out, with the weights of the actor's folder.

    A collective over the default process group, which contains all replicas. Raises as above.
    """
    shardings = RunShardings(plan=plan)
    memory = memory_plan(shardings, capacity_of(plan, platform.device_type))
    table = shardings.rollout.table(dist.get_rank())
    worker = RolloutWorker(table=table, **_parts(shardings, platform, memory))
    worker.load_weights(plan.config.actor_config.load, 0)
    return worker


def _parts(shardings: RunShardings, platform: Platform, asked: MemoryPlan) -> dict[str, Any]:
    """Return the engine and its memory ledger, by the names of a worker's fields."""
    plan, memory = shardings.plan, with_any_kv_cache(shardings, asked)
    if plan.config.megatron_training.is_deterministic:
        make_deterministic()
    if plan.config.rl_config.check_memory and not memory.fits:
        raise DeviceMemoryError(too_small(memory))
    kv_cache_bytes = memory.kv_cache_bytes
    assert kv_cache_bytes is not None, "a worker's plan has the size of the KV cache"
    engine = rollout_engine(plan, platform, kv_cache_bytes)
    ledger = DeviceLedger(memory.capacity_bytes)
    ledger.add(Region.ROLLOUT_WEIGHTS, RolloutRegion(engine, "weights"))
    ledger.add(Region.KV_CACHE, RolloutRegion(engine, "kv_cache"))
    vocabulary = plan.models["actor"].vocab_size
    return {"inference_model": engine, "ledger": ledger, "plan": memory, "vocabulary": vocabulary}
