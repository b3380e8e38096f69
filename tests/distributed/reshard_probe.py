"""What the tests of the reshard call in forked ranks: real Megatron, and real vLLM."""

import tempfile
from pathlib import Path
from typing import Literal

import shards_messages
import torch
import torch.distributed as dist
import training_messages
from offload_probe import arena
from reshard_messages import Arrived, Way
from rollout_probe import sleeping_engine
from shards_probe import _ask, _ordinary_engine, settings_of
from training_probe import build
from transfer_probe import Shards, prepared
from weight_files import load_one_by_one

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.resharding.plan import Topology, plan_sides
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.actor import TrainedActor
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.scoring import ScoringModel
from mindrl.training.state_part import StatePart
from mindrl.workers.stored_region import StoredRegion
from mindrl.workers.weight_sync import TransitSettings, WeightSync

Prompts = list[list[int]]
LOSS = GrpoLoss(clip_low=0.2, clip_high=0.2, kl_kind="k3", kl_coef=0.0, entropy_coef=0.0)
OPTIMIZER = OptimizerSettings(
    lr=1e-3,
    min_lr=0.0,
    lr_decay_style="constant",
    warmup_updates=0,
    total_updates=10,
    weight_decay=0.0,
    clip_grad=1.0,
    adam_beta1=0.9,
    adam_beta2=0.95,
    adam_eps=1e-8,
    bf16=False,
    use_distributed_optimizer=True,
)


def resharded(ways: list[Way]) -> list[list[str]]:
    """Reshard real Megatron models; returns, for each way, the tensors that are not the file's."""
    return [_resharded(way, index) for index, way in enumerate(ways)]


def transit_settings(
    way: Way, trained: TrainedActor, *, verify: Literal["off", "always"]
) -> TransitSettings:
    """Plan a way as a run does."""
    source = trained.model.sharding
    rollout = vllm_sharding(trained.model.description, way.rollout, dtype="float32")
    topology = Topology(ranks_per_node=dist.get_world_size())
    return TransitSettings(
        rollout=rollout,
        reshard=plan_sides(source, rollout, topology, bucket_bytes=way.bucket_bytes),
        ranks_per_node=topology.ranks_per_node,
        bucket_bytes=way.bucket_bytes,
        timeout_seconds=60,
        verify=verify,
    )


def _resharded(way: Way, index: int) -> list[str]:
    model = build(_case(way))
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
    scoring = build(_case(way))
    trained = TrainedActor(scoring, OPTIMIZER, LOSS)
    case = shards_messages.Case(
        folder=way.folder,
        later_folder=way.folder,
        tensor_parallel_size=way.rollout.tp,
        expert_parallel=way.rollout.ep > 1,
    )
    engine = sleeping_engine(settings_of(case))
    settings = transit_settings(way, trained, verify="always")
    weights = StoredRegion(trained.tensors(StatePart.PARAMETERS), arena(256 << 20), "cpu")
    transit = WeightSync(
        way.folder,
        trained,
        engine,
        settings,
        on_last_read=weights.offload_storage_of,
        name=f"way {index}",
    )
    arrived = Arrived()
    with tempfile.TemporaryDirectory() as scratch:
        # All ranks read what rank 0 wrote.
        shared = [scratch]
        dist.broadcast_object_list(shared, src=0)
        for update in range(3):
            _change(scoring, update)
            weights.changed()
            engine.wake("weights")
            transit.reshard()
            arrived.parameters_left += weights.device_bytes()
            weights.offload()
            weights.onload()
            engine.wake("kv_cache")
            arrived.answers[f"update {update}"] = _ask(engine.llm, prompts)
            engine.sleep()
        folder = Path(shared[0]) / "exported"
        transit.export(folder)
        dist.barrier()
        fresh = _ordinary_engine(case, str(folder))
        arrived.fresh["update 2"] = _ask(fresh, prompts)
        del fresh
        dist.barrier()
    engine.wake("weights")
    transit.reshard()
    engine.wake("kv_cache")
    arrived.answers["woken"] = _ask(engine.llm, prompts)
    moved = transit.bytes_moved()
    arrived.received, arrived.needed = moved["received"], moved["needed"]
    return arrived


def _case(way: Way) -> training_messages.Case:
    settings = {"grouped_experts": way.grouped}
    return training_messages.Case(folder=way.folder, layout=way.train, settings=settings)


@torch.no_grad()
def _change(model: ScoringModel, update: int) -> None:
    """Change every weight, alike on every rank that holds it."""
    for tensor in model.local_tensors().values():
        tensor.add_(0.05 * torch.sin(tensor * (37.0 + update)))
