"""One of two processes with their own default groups that meet in an additional group.

Started by test_rendezvous.py as `python beside.py RANK [HOST PORT]`; rank 0 prints where its store
is, then each prints what it saw as JSON.
"""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import (
    Seat,
    hold_store,
    join_extra_group,
    join_process_group,
    leave_group,
    listen,
    reach_store,
)

LIMIT = timedelta(seconds=60)


def swap(group: dist.ProcessGroup, rank: int) -> float:
    """Send this rank's number to the other, and return the other's."""
    ours, theirs = torch.tensor([10.0 + rank]), torch.zeros(1)
    ways = [(dist.isend, ours), (dist.irecv, theirs)]
    operations = [dist.P2POp(way, each, group=group, group_peer=1 - rank) for way, each in ways]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return theirs.item()


if __name__ == "__main__":
    rank, address = int(sys.argv[1]), sys.argv[2:]
    alone = Seat(rank=0, world_size=1, local_device=0)
    listener = listen("127.0.0.1")
    own_address = listener.getsockname()
    join_process_group(PLATFORMS["cpu"], alone, own_address, timeout=LIMIT, listener=listener)
    if rank == 0:
        store, held_at = hold_store(LIMIT)
        print(*held_at, flush=True)
    else:
        store = reach_store((address[0], int(address[1])), LIMIT)
    seat = Seat(rank=rank, world_size=2, local_device=0)
    group = join_extra_group(PLATFORMS["cpu"], store, seat, "both", LIMIT)
    received, default = swap(group, rank), torch.ones(1)
    dist.all_reduce(default)
    ranks = dist.distributed_c10d._world.pg_group_ranks.pop(group)
    try:
        refused = f"none: {swap(group, rank)}"
    except ValueError as error:
        refused = str(error)
    dist.distributed_c10d._world.pg_group_ranks[group] = ranks
    again = swap(group, rank)
    leave_group(group)
    dist.all_reduce(default)
    print(json.dumps([received, again, default.item(), dist.get_world_size(), refused]))
