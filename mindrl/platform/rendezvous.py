"""How the worker processes of a run find each other."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mindrl.platform.device import Platform

CALLED_OFF = "called off"
"""The key of a store that says why a meeting does not take place."""
_MOST_GROUPS = 1_000_000
"""Of one world: numbers that are left for the names of its groups."""
_HCCL_SHARE = 0.9
"""Of the limit of a collective: HCCL's own."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One worker's place in a run."""

    rank: int
    world_size: int
    local_device: int
    """Index of its device on its machine."""


def listen(address: str) -> socket.socket:
    """Open a listening socket on a free port of one address, and of no other."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family)


def join_process_group(
    platform: Platform,
    seat: Seat,
    address: tuple[str, int],
    *,
    timeout: timedelta,
    listener: socket.socket | None,
) -> None:
    """Make the default process group, in which a collective that outlasts the timeout raises.

    A collective over all ranks. The address is that of rank 0, the listener its own listening
    socket, and None on the other ranks. Handing it over leaves no moment in which another program
    could take the port, and no other address is open.
    """
    host, port = address
    os.environ.update(
        RANK=str(seat.rank),
        LOCAL_RANK=str(seat.local_device),
        WORLD_SIZE=str(seat.world_size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    if platform.collective_backend == "hccl":
        # It has to speak before torch_npu's watchdog ends the process.
        os.environ.setdefault("HCCL_EXEC_TIMEOUT", str(int(timeout.total_seconds() * _HCCL_SHARE)))
    if platform.kind != "cpu":
        torch.get_device_module(platform.device_type).set_device(seat.local_device)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        seat.world_size,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    dist.init_process_group(
        platform.collective_backend,
        store=store,
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=timeout,
    )


def own_store(name: str) -> dist.Store:  # type: ignore[name-defined]
    """Return a part of the default group's store, for one user of that name on every rank."""
    # torch has no public way to the store of a group that it made.
    default = dist.distributed_c10d._get_default_store()
    return dist.PrefixStore(name, default)  # type: ignore[attr-defined]


def hold_store(timeout: timedelta) -> tuple[dist.Store, tuple[str, int]]:  # type: ignore[name-defined]
    """Open a store on this process's own address, where processes of other worlds meet.

    Needs the default group, of which this is rank 0; returns the store and where it listens.
    """
    listener = listen(os.environ["MASTER_ADDR"])
    host, port = listener.getsockname()[:2]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach()
    )
    return store, (host, port)


def reach_store(address: tuple[str, int], timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Connect to a store that another process holds; RuntimeError where none is there."""
    return dist.TCPStore(*address, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def link_name(replica: int, generation: int) -> str:
    """Return what a meeting of the training ranks with a replica is called, in their store."""
    return f"link {replica} {generation}"


def call_off(address: tuple[str, int], name: str, why: str, timeout: timedelta) -> None:
    """Let those who wait in a store for others of a name know that these do not come."""
    store = reach_store(address, timeout)
    dist.PrefixStore(name, store).set(CALLED_OFF, why)  # type: ignore[attr-defined]


def join_beside(
    platform: Platform,
    store: dist.Store,  # type: ignore[name-defined]
    seat: Seat,
    name: str,
    timeout: timedelta,
) -> dist.ProcessGroup:
    """Make a group over processes of several worlds; the default group of each stays what it is.

    A collective over those processes. The seat is that in the new group; no other group of this
    process has the name, and no other use of the store its keys.
    """
    # torch makes groups out of the default one alone, unless it takes this one for such a one.
    c10d: Any = dist.distributed_c10d
    made: tuple[dist.ProcessGroup, object] = c10d._new_process_group_helper(
        seat.world_size,
        seat.rank,
        [],
        platform.collective_backend,
        store,
        group_name=name,
        timeout=timeout,
    )
    group, _ = made
    # Messages between two ranks look the ranks of their group up here.
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(seat.world_size)}
    return group


class World:
    """Some ranks of the default group that take themselves for all, as long as it is active.

    Their default group is their own then: ranks are counted in it, and groups are made of it.
    """

    def __init__(
        self, platform: Platform, ranks: range, name: str, number: int, timeout: timedelta
    ) -> None:
        """Meet the other ranks. A collective over them alone; `number` is no other world's."""
        seat = Seat(rank=ranks.index(dist.get_rank()), world_size=len(ranks), local_device=0)
        self.group = join_beside(platform, own_store(name), seat, name, timeout)
        # torch names groups by how many a process has made, which differs between worlds.
        self.groups_made = number * _MOST_GROUPS

    @contextmanager
    def active(self) -> Iterator[None]:
        """Be the world; afterwards that is the one of before."""
        # torch has no public way to change its default group.
        c10d: Any = dist.distributed_c10d
        before, count = c10d._world.default_pg, c10d._world.group_count
        if before is self.group:
            yield
            return
        c10d._update_default_pg(self.group)
        c10d._world.group_count = self.groups_made
        try:
            yield
        finally:
            self.groups_made = c10d._world.group_count
            c10d._update_default_pg(before)
            c10d._world.group_count = count


def leave_group(group: dist.ProcessGroup) -> None:
    """Give a group up, whether or not its other ranks are still there."""
    dist.destroy_process_group(group)
