"""What the tests of the transfer call in forked ranks: plans carried out on plain tensors."""

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Literal

import torch
import torch.distributed as dist
from own_device import device_type
from torch import Tensor

from mindrl.errors import ReshardError
from mindrl.models.decoder import always_float32, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.orientation import oriented
from mindrl.models.placement import Box, ShardingTable, index_of
from mindrl.models.sharding import Sharding, dtype_of
from mindrl.platform.rendezvous import own_store
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import Topology, plan_reshard
from mindrl.resharding.reshard import Reshard
from mindrl.workers.weight_sync import WeightRoute, WeightSync

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Logical = dict[str, Tensor]


class Shards:
    """A rank's tensors on one side, with a record of what the transfer did to them."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.released: list[str] = []
        self.closed: list[str] = []
        self.damaged: str | None = None

    def read(self, name: str, box: Box) -> Tensor:
        assert name not in self.released, f"{name} is read after its release"
        return self.tensors[name][index_of(box)]

    def release(self, name: str) -> None:
        self.released.append(name)

    def open(self, name: str) -> Tensor:
        assert name not in self.closed, f"{name} is opened after its close"
        if name == self.damaged:
            # As a faulty engine would: the first number is another one whatever is written.
            self.tensors[name].view(-1)[0] = 77.0
        return self.tensors[name]

    def close(self, name: str) -> None:
        assert name not in self.closed, f"{name} is closed twice"
        self.closed.append(name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def finish(self) -> None:
        """As the engine's shards have it; there is nothing to renew."""


def logical_weights(model: ModelDescription) -> Logical:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(shape, generator=generator)
        for name, shape in logical_shapes(model).items()
    }


def shards_of(table: ShardingTable, logical: Logical, dtype: torch.dtype) -> dict[str, Tensor]:
    """Cut a rank's tensors out of the logical ones; padding is 0, and some are float32 always."""
    device = next(iter(logical.values())).device
    tensors = {
        name: torch.zeros(
            entry.shape,
            dtype=torch.float32 if dtype_of(entry, "bfloat16") == "float32" else dtype,
            device=device,
        )
        for name, entry in table.items()
    }
    for name, entry in table.items():
        for placement in entry.placements:
            part = logical[placement.tensor][index_of(placement.source)]
            oriented(tensors[name], placement.local, placement.axes).copy_(part)
    return tensors


def transferred(
    model: ModelDescription, pairs: list[tuple[Sharding, Sharding]], bucket_bytes: int
) -> list[list[str]]:
    """Carry out a plan for each pair of sides, twice; returns what arrived wrong."""
    return [
        _transferred(model, prepared(*pair, bucket_bytes, str(index)), *pair)
        for index, pair in enumerate(pairs)
    ]


def _transferred(
    model: ModelDescription, reshard: Reshard, source: Sharding, target: Sharding
) -> list[str]:
    rank = dist.get_rank()
    logical = logical_weights(model)
    if "bfloat16" in (source.dtype, target.dtype):
        logical = {
            name: tensor if always_float32(name) else tensor.bfloat16().float()
            for name, tensor in logical.items()
        }
    logical = {name: tensor.to(device_type()) for name, tensor in logical.items()}
    ours = shards_of(source.table(rank), logical, TYPES[source.dtype])
    expected = shards_of(target.table(rank), logical, TYPES[target.dtype])
    wrong = []
    for _ in range(2):
        given = Shards(ours)
        taken = Shards({name: torch.zeros_like(tensor) for name, tensor in expected.items()})
        reshard.run(given, taken, verify=True)
        wrong += [name for name in expected if not torch.equal(taken.tensors[name], expected[name])]
        wrong += sorted(expected.keys() ^ set(taken.closed)) + sorted(
            ours.keys() ^ set(given.released)
        )
    return wrong


def prepared(
    source: Sharding, target: Sharding, bucket_bytes: int, name: str, timeout_seconds: float = 60
) -> Reshard:
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    topology = Topology(ranks_per_node=2)
    return Reshard(
        plan_reshard(source, target, topology, bucket_bytes=bucket_bytes),
        Channel(group, own_store(name), torch.device(device_type()), timeout_seconds),
        source.table(rank),
        target.table(rank),
    )


def second_damage(
    model: ModelDescription, pair: tuple[Sharding, Sharding], verify: Literal["first", "always"]
) -> str:
    """Sync weights twice, the second time into a faulty engine; returns what is said of it."""
    source, target = pair
    rank, logical = dist.get_rank(), logical_weights(model)
    ours = shards_of(source.table(rank), logical, TYPES[source.dtype])
    theirs = shards_of(target.table(rank), logical, TYPES[target.dtype])
    sinks = [Shards(theirs), Shards(theirs)]
    sinks[1].damaged = "model.layers.1.self_attn.qkv_proj.weight"
    plan = plan_reshard(source, target, Topology(ranks_per_node=1), bucket_bytes=4096)
    sync = WeightSync(
        SimpleNamespace(
            sharding=source, device_type="cpu", local_tensors=lambda: ours, adapters=None
        ),
        SimpleNamespace(weight_sink=lambda: sinks.pop(0), device_type="cpu"),
        WeightRoute(source=source, target=target, plan=plan, timeout_seconds=60),
        verify=verify,
        on_last_read=None,
        name=verify,
    )
    sync.reshard()
    try:
        sync.reshard()
    except ReshardError as error:
        return str(error)
    return ""


def failure(
    model: ModelDescription, pair: tuple[Sharding, Sharding], kind: str
) -> tuple[str, float]:
    """Let something go wrong; returns what this rank said, and after how many seconds."""
    said = _failure(model, pair, kind)
    # The store lives in rank 0's process, which must not end before the others have read it.
    store = own_store("end")
    store.set(str(dist.get_rank()), "")
    if dist.get_rank() == 0:
        store.wait([str(rank) for rank in range(dist.get_world_size())], timedelta(seconds=20))
    return said


def _failure(
    model: ModelDescription, pair: tuple[Sharding, Sharding], kind: str
) -> tuple[str, float]:
    source, target = pair
    rank = dist.get_rank()
    reshard = prepared(source, target, 4096, kind, timeout_seconds=3)
    if kind == "other plan" and rank == 2:
        reshard = prepared(source, target, 2048, kind, timeout_seconds=3)
    logical = logical_weights(model)
    given = Shards(shards_of(source.table(rank), logical, TYPES[source.dtype]))
    taken = Shards(shards_of(target.table(rank), logical, TYPES[target.dtype]))
    verify = kind == "damaged"
    if verify and rank == 1:
        taken.damaged = "model.layers.1.self_attn.qkv_proj.weight"
    if kind == "silent from the start" and rank == 1:
        time.sleep(5)
        return "slept", 0.0
    if kind.startswith("silent later"):
        reshard.run(given, Shards(taken.tensors))
        given.released.clear()
        if rank == 1:
            time.sleep(5)
            return "slept", 0.0
    start = time.monotonic()
    try:
        reshard.run(given, taken, verify=verify)
    except ReshardError as error:
        return str(error), time.monotonic() - start
    return "no error", time.monotonic() - start
