"""Functions that tests of collectives call in the processes of simulated devices."""

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transfer_probe import Shards

from mindrl.errors import ReshardError
from mindrl.models.sharding import held_in_full
from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import Seat, join_extra_group, leave_group, own_store
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import Topology, plan_reshard
from mindrl.resharding.reshard import Reshard

Results = dict[str, list[float]]


def collectives() -> tuple[Results, int]:
    """Carry each collective that mindrl and Megatron use out; returns results by name.

    And how many handles a batch of messages has.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = [float(other) for other in range(size)]

    def full(count: int, value: float = rank, **options: Any) -> Tensor:
        return torch.full((count,), float(value), device="npu", **options)

    found = {
        "sum": summed(full(8, rank + 1)),
        "max in 16 bits": summed(full(2, rank, dtype=torch.bfloat16), dist.ReduceOp.MAX),
        "async": awaited(full(2, rank + 1)),
    }
    found["all_gather"] = full(size)
    dist.all_gather_into_tensor(found["all_gather"], full(1))
    found["reduce_scatter"] = full(1)
    dist.reduce_scatter_tensor(found["reduce_scatter"], torch.tensor(ranks).to("npu"))
    # Rank r sends r + 1 numbers to each.
    found["all_to_all"] = full(sum(other + 1 for other in range(size)))
    counts = [other + 1 for other in range(size)]
    outgoing = full(size * (rank + 1))
    dist.all_to_all_single(found["all_to_all"], outgoing, counts, [rank + 1] * size)
    found["broadcast"] = full(2)
    dist.broadcast(found["broadcast"], size - 1)
    found["message"] = full(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, full(3), (rank + 1) % size),
            dist.P2POp(dist.irecv, found["message"], (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    return {name: tensor.tolist() for name, tensor in found.items()}, len(works)


def summed(tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    dist.all_reduce(tensor, op=operation)
    return tensor


def awaited(tensor: Tensor) -> Tensor:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    return tensor


def sum_of_doubles() -> str:
    """Return what is said of a sum in float64; no rank leaves before all have asked."""
    said = ""
    summed(torch.ones(1, device="npu"))
    try:
        summed(torch.ones(2, dtype=torch.float64, device="npu"))
    except (RuntimeError, TypeError) as error:
        said = str(error)
    summed(torch.ones(1, device="npu"))
    return said


def limit_of_hccl() -> str:
    """Return the seconds that HCCL waits, in a process whose groups wait for two minutes."""
    summed(torch.ones(1, device="npu"))
    return os.environ["HCCL_EXEC_TIMEOUT"]


def sum_without_the_last() -> tuple[str, float]:
    """Sum over all ranks but the last one; returns the error, and the seconds until then."""
    summed(torch.ones(1, device="npu"))
    torch.npu.synchronize()
    began, said = time.monotonic(), ""
    if dist.get_rank() < dist.get_world_size() - 1:
        try:
            summed(torch.ones(1, device="npu"))
            torch.npu.synchronize()
        except RuntimeError as error:
            said = str(error)
    return said, time.monotonic() - began


def groups_until(count: int) -> tuple[int, str]:
    """Make so many groups of all ranks and use each; returns how many worked, and the error."""
    for made in range(count):
        try:
            group = dist.new_group(list(range(dist.get_world_size())))
            dist.all_reduce(torch.ones(1, device="npu"), group=group)
            torch.npu.synchronize()
        except RuntimeError as error:
            return made, str(error)
    return count, ""


def beside(rounds: int) -> list[list[float]]:
    """Make a group beside the default one and leave it, again and again.

    Returns what the rank before this one sent in each, and the sum over the default group behind.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    seat, limit = Seat(rank=rank, world_size=size, local_device=rank), timedelta(seconds=60)
    found = []
    for index in range(rounds):
        store = own_store(f"beside {index}")
        group = join_extra_group(PLATFORMS["npu"], store, seat, f"beside {index}", limit)
        ours = torch.full((2,), 10.0 * index + rank, device="npu")
        theirs = torch.zeros(2, device="npu")
        ways = [
            dist.P2POp(dist.isend, ours, group=group, group_peer=(rank + 1) % size),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=(rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ways):
            work.wait()
        leave_group(group)
        total = torch.ones(1, device="npu")
        dist.all_reduce(total)
        found.append([*theirs.tolist(), total.item()])
    return found


def late_by(seconds: float, limit: float) -> tuple[str, float, float]:
    """Swap a number with the other rank, which asks only seconds later.

    Returns this rank's error or an empty string, its seconds, and the number that it received.
    """
    rank = dist.get_rank()
    channel = Channel(
        own_group(), own_store(f"late by {seconds}"), torch.device("npu"), limit, ("one", "other")
    )
    channel.note_runs(0)
    dist.barrier()
    began, said = time.monotonic(), ""
    if rank == 1:
        time.sleep(seconds)
    ours, theirs = (torch.full((4,), value, device="npu") for value in (float(rank), -1.0))
    try:
        channel.swap({1 - rank: ours}, {1 - rank: theirs})
    except ReshardError as error:
        said = str(error)
    waited = time.monotonic() - began
    return said, waited, theirs[0].item() if not said else -1.0


def from_first_to_second() -> list[float]:
    """Reshard a tensor from rank 0 to rank 1, before any collective; others have no messages."""
    rank, size, shape = dist.get_rank(), dist.get_world_size(), {"w": (4,)}
    source, target = (
        held_in_full(shape, world_size=size, holders=[holder], dtype="float32") for holder in (0, 1)
    )
    plan = plan_reshard(source, target, Topology(ranks_per_node=size))
    channel = Channel(own_group(), own_store("first to second"), torch.device("npu"), 20.0)
    ours = {"w": torch.arange(4.0).to("npu")} if rank == 0 else {}
    taken = {"w": torch.zeros(4, device="npu")} if rank == 1 else {}
    Reshard(plan, channel, ours, taken).run(Shards(ours), Shards(taken))
    return taken["w"].tolist() if taken else []


def own_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
