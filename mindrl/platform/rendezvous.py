"""Process groups of a run's workers: how they are created and joined."""

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
"""Key in a store whose value is the reason why a meeting was called off."""
_MOST_GROUPS = 1_000_000
"""Maximum number of groups per world; separates their names."""
_HCCL_SHARE = 0.9
"""HCCL's timeout as a fraction of the collective's."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Rank and device of one worker in a run."""

    rank: int
    world_size: int
    local_device: int
    """Index of its device on its machine."""


def listen(address: str) -> socket.socket:
    """Open a listening socket on a free port of this address only."""
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
    """Create the default process group; its collectives raise after `timeout`.

    A collective over all ranks. `address` is that of rank 0; `listener` is rank 0's listening
    socket there, and None on other ranks. Passing an open socket prevents another program from
    taking the port, and no other address is open.
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
        # It must raise before torch_npu's watchdog ends the process.
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
    """Return a namespace of the default group's store; all ranks pass the same name."""
    # torch has no public access to the store of a group that it made.
    default = dist.distributed_c10d._get_default_store()
    return dist.PrefixStore(name, default)  # type: ignore[attr-defined]


def hold_store(timeout: timedelta) -> tuple[dist.Store, tuple[str, int]]:  # type: ignore[name-defined]
    """Open a store on this process's address, in which processes of other worlds meet.

    Needs the default group, with this process as rank 0. Returns the store and its address.
    """
    listener = listen(os.environ["MASTER_ADDR"])
    host, port = listener.getsockname()[:2]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach()
    )
    return store, (host, port)


def reach_store(address: tuple[str, int], timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Connect to a store of another process; raises RuntimeError if there is none."""
    return dist.TCPStore(*address, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def link_name(replica: int, generation: int) -> str:
    """Return the name, in their store, of a meeting of the training ranks with a replica."""
    return f"link {replica} {generation}"


def call_off(address: tuple[str, int], name: str, why: str, timeout: timedelta) -> None:
    """Notify processes that wait in a store for a meeting that it is called off."""
    store = reach_store(address, timeout)
    dist.PrefixStore(name, store).set(CALLED_OFF, why)  # type: ignore[attr-defined]


def join_extra_group(
    platform: Platform,
    store: dist.Store,  # type: ignore[name-defined]
    seat: Seat,
    name: str,
    timeout: timedelta,
) -> dist.ProcessGroup:
    """Create a group over processes of several worlds; their default groups stay unchanged.

    A collective over those processes. `seat` is the rank in the new group. `name` must be unique
    among the groups of this process and the users of the store.
    """
    # torch creates groups from the default one only; this private function does not need it.
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
    # Point-to-point operations look up ranks of their group here.
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(seat.world_size)}
    return group


class World:
    """A subset of the default group's ranks that acts as the default group while active.

    Ranks are then counted within it, and new groups are made from it.
    """

    def __init__(
        self, platform: Platform, ranks: range, name: str, number: int, timeout: timedelta
    ) -> None:
        """Join the group. A collective over these ranks only; `number` is unique per world."""
        seat = Seat(rank=ranks.index(dist.get_rank()), world_size=len(ranks), local_device=0)
        self.group = join_extra_group(platform, own_store(name), seat, name, timeout)
        # torch names groups by a counter of the process, which differs between worlds.
        self.groups_made = number * _MOST_GROUPS

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the default group in the body, then restore the previous one."""
        # torch has no public way to replace the default group.
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
    """Destroy a group, even if its other ranks have ended."""
    dist.destroy_process_group(group)
