"""What the tests of the reshard call in forked ranks: real Megatron, and real vLLM."""

import tempfile
from pathlib import Path

import shards_messages
import torch
import torch.distributed as dist
import training_messages
from offload_probe import arena
from reshard_messages import Arrived, Way
from shards_probe import _ask, _ordinary_engine, engine_of
from training_probe import of_any_engine
from transfer_probe import Shards, prepared
from weight_files import load_one_by_one

from mindrl.resharding.plan import Topology, plan_reshard
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.engine import StatePart, TrainingEngine
from mindrl.workers.device_regions import StoredRegion
from mindrl.workers.weight_export import WeightExport
from mindrl.workers.weight_sync import WeightRoute, WeightSync

Prompts = list[list[int]]
OPTIMIZER = {"lr": 1e-3, "weight_decay": 0.0, "updates": 10}


def resharded(ways: list[Way]) -> list[list[str]]:
    """Reshard real Megatron models; returns, for each way, the tensors that are not the file's."""
    return [_resharded(way, index) for index, way in enumerate(ways)]


def topology() -> Topology:
    """Say that all ranks share a machine."""
    return Topology(ranks_per_node=dist.get_world_size())


def export_of(way: Way, trained: TrainingEngine, name: str) -> WeightExport:
    """Return the way of a model to files, as of a run."""
    return WeightExport(
        trained, "float32", topology(), bucket_bytes=way.bucket_bytes, timeout_seconds=60, name=name
    )


def _resharded(way: Way, index: int) -> list[str]:
    model = of_any_engine(_case(way))
    target = vllm_sharding(model.description, way.rollout, dtype="float32")
    table = target.table(dist.get_rank())
    transfer = prepared(model.sharding, target, way.bucket_bytes, str(index))
    taken = Shards({name: torch.zeros(entry.shape) for name, entry in table.items()})
    transfer.run(Shards(model.local_tensors()), taken, verify=True)
    expected = Shards({name: torch.zeros(entry.shape) for name, entry in table.items()})
    load_one_by_one(expected, way.folder, table)
    wrong = [name for name in table if not torch.equal(taken.tensors[name], expected.tensors[name])]
    return wrong + sorted(table.keys() ^ set(taken.closed))


def into_engines(ways: list[Way], prompts: Prompts) -> list[Arrived]:
    """Reshard real Megatron models into real engines, all of one tensor-parallel size."""
    return [_into_engine(way, prompts, index) for index, way in enumerate(ways)]


def _into_engine(way: Way, prompts: Prompts, index: int) -> Arrived:
    trained = of_any_engine(_case(way), OPTIMIZER)
    case = shards_messages.Case(
        folder=way.folder,
        later_folder=way.folder,
        tensor_parallel_size=way.rollout.tp,
        expert_parallel=way.rollout.ep > 1,
    )
    engine = engine_of(case)
    rollout = vllm_sharding(trained.description, way.rollout, dtype="float32")
    plan = plan_reshard(trained.sharding, rollout, topology(), bucket_bytes=way.bucket_bytes)
    weights = StoredRegion(trained.state(StatePart.PARAMETERS), arena(256 << 20), "cpu")
    sync = WeightSync(
        trained,
        engine,
        WeightRoute(source=trained.sharding, target=rollout, plan=plan, timeout_seconds=60),
        verify="always",
        on_last_read=weights.offload_storage_of,
        name=f"way {index}",
    )
    arrived = Arrived()
    with tempfile.TemporaryDirectory() as scratch:
        # All ranks read what rank 0 wrote.
        shared = [scratch]
        dist.broadcast_object_list(shared, src=0)
        for update in range(3):
            _change(trained, update)
            weights.changed()
            engine.onload("weights")
            sync.reshard()
            arrived.parameters_left += weights.device_bytes()
            weights.offload()
            weights.onload()
            engine.onload("kv_cache")
            arrived.answers[f"update {update}"] = _ask(engine.llm, prompts)
            engine.offload()
        folder = Path(shared[0]) / "exported"
        export_of(way, trained, f"export {index}").write(folder)
        fresh = _ordinary_engine(case, str(folder))
        arrived.fresh["update 2"] = _ask(fresh, prompts)
        del fresh
        dist.barrier()
    engine.onload("weights")
    sync.reshard()
    engine.onload("kv_cache")
    arrived.answers["woken"] = _ask(engine.llm, prompts)
    moved = sync.bytes_moved()
    arrived.received, arrived.needed = moved["received"], moved["needed"]
    return arrived


def _case(way: Way) -> training_messages.Case:
    return training_messages.Case(
        folder=way.folder,
        layout=way.train,
        backend=way.backend,
        settings={"moe_grouped_gemm": way.grouped},
    )


@torch.no_grad()
def _change(model: TrainingEngine, update: int, kept: str | None = None) -> None:
    """Change every weight, alike on every rank that holds it, but those of a prefix."""
    for name, tensor in model.local_tensors().items():
        if kept is not None and name.startswith(kept):
            continue
        tensor.add_(0.05 * torch.sin(tensor * (37.0 + update)))
