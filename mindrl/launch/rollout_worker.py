"""From the plan of a run to a rollout worker. Imported inside a prepared worker process only."""

import torch.distributed as dist

from mindrl.errors import DeviceMemoryError
from mindrl.launch.link_routes import link_routes
from mindrl.launch.worker import capacity_of, rollout_engine, with_any_kv_cache
from mindrl.memory.schedule import Region
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform
from mindrl.preflight.memory_plan import too_small
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import RolloutRegion
from mindrl.workers.rollout_worker import RolloutWorker
from mindrl.workers.weight_links import LinkEnd, ReceivingEnd


def build_rollout_worker(plan: RunPlan, platform: Platform) -> RolloutWorker:
    """Build this rank of a replica. A collective over the default process group, the replica's.

    Raises:
        ModelError: The actor's folder does not hold a supported model.
        DeviceMemoryError: The engine does not fit the device.
    """
    if plan.config.megatron_training.is_deterministic:
        make_deterministic()
    shardings, rank = RunShardings(plan=plan), dist.get_rank()
    asked = rollout_memory_plan(shardings, capacity_of(plan, platform.device_type))
    memory = with_any_kv_cache(shardings, asked)
    if plan.config.rl_config.check_memory and not memory.fits:
        raise DeviceMemoryError(too_small(memory))
    kv_cache_bytes = memory.kv_cache_bytes
    assert kv_cache_bytes is not None, "the plan of a worker says how large it is"
    engine = rollout_engine(plan, platform, kv_cache_bytes)
    ledger = DeviceLedger(memory.capacity_bytes)
    ledger.add(Region.ROLLOUT_WEIGHTS, RolloutRegion(engine, "weights"))
    ledger.add(Region.KV_CACHE, RolloutRegion(engine, "kv_cache"))
    training = plan.config.world_size
    routes = link_routes(shardings)
    return RolloutWorker(
        rollout=engine,
        end=ReceivingEnd(LinkEnd(platform=platform, routes=routes, rank=training + rank)),
        ledger=ledger,
        plan=memory,
        in_flight_bytes=int(shardings.staging[training + rank]),
    )
