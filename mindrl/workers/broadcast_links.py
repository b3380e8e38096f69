"""Transfer of trained weights to servers that load whole tensors, such as SGLang's.

Each tensor is gathered on training rank 0 and broadcast from there as soon as it is complete: the
server loads it under its Hugging Face name and shards it itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.checkpoint.export import TORCH_TYPES
from mindrl.errors import ReshardError
from mindrl.models.sharding import dtype_of
from mindrl.observability.progress import tick
from mindrl.platform.device import Platform
from mindrl.platform.rendezvous import Seat, join_extra_group, leave_group, link_name
from mindrl.resharding.gathering import Broadcast
from mindrl.resharding.reshard import Reshard, WeightSource
from mindrl.workers.link_meeting import unless_called_off
from mindrl.workers.weight_sync import WeightRoute


@dataclass(frozen=True, kw_only=True)
class BroadcastEnd:
    """Parameters of a training rank for joining links. Needs the default process group."""

    platform: Platform
    broadcast: Broadcast
    """Transfer from all training ranks to rank 0."""
    timeout_seconds: float
    """Longest wait for a peer."""
    server_ranks: int
    """Number of ranks per server."""
    verify: Literal["off", "first", "always"]
    """Which transfers to verify: the tensors gathered on rank 0 are compared."""

    @property
    def rank(self) -> int:
        """Rank on the training side."""
        return dist.get_rank()

    @property
    def route(self) -> WeightRoute:
        """Route from all training ranks to rank 0, with every tensor whole."""
        given, seconds = self.broadcast, self.timeout_seconds
        return WeightRoute(
            source=given.source, target=given.whole, plan=given.plan, timeout_seconds=seconds
        )

    def join(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        replica: int,
        generation: int,
    ) -> "BroadcastLink":
        """Let rank 0 join a group with the ranks of a server through a store.

        Raises:
            ReshardError: They did not join in time, or the meeting was called off.
        """
        name = link_name(replica, generation)
        reshard = self.route.open(self.platform.device_type, name)
        group = self._meet(store, name) if self.rank == 0 else None
        return BroadcastLink(reshard, group, self)

    def _meet(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        name: str,
    ) -> dist.ProcessGroup:
        """Join the group that the server creates; the default group stays unchanged."""
        ours = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        # torch blocks the store's connection while it waits, so the group uses a clone.
        theirs = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined]
        seat = Seat(rank=0, world_size=1 + self.server_ranks, local_device=0)
        limit = timedelta(seconds=self.timeout_seconds)
        make = partial(join_extra_group, self.platform, theirs, seat, name, limit)
        try:
            return unless_called_off(ours, make) if self.platform.kind == "cpu" else make()
        except RuntimeError as error:
            raise ReshardError(f"cannot create {name}: {error}") from error


@dataclass
class BroadcastLink:
    """A link between a server and the training ranks, on one training rank."""

    reshard: Reshard
    group: dist.ProcessGroup | None
    """Group of rank 0 and the server's ranks; None on other ranks."""
    end: BroadcastEnd

    def run(self, source: WeightSource) -> None:
        """Transfer the weights. A collective over the training ranks and those of the server.

        Raises:
            ReshardError: As in `Reshard.run`, or the server does not accept the weights.
        """
        is_first, verify = not self.reshard.runs, self.end.verify
        sink = _Broadcasting(self.group, self.end)
        self.reshard.run(
            source, sink, verify=verify == "always" or (verify == "first" and is_first)
        )
        sink.finish()

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes that this rank has in flight, or waiting to be broadcast."""
        return int(self.end.broadcast.staging[self.end.rank])

    def bytes_moved(self) -> dict[str, int]:
        """Return the bytes of a transfer on this rank; each server rank receives whole tensors."""
        plan, rank = self.reshard.plan, self.end.rank
        whole = self.end.broadcast.whole.held_bytes()[rank]
        return {
            "sent": int(plan.sent[rank]) + whole * self.end.server_ranks,
            "received": int(plan.received[rank]),
            "needed": int(plan.lower_bound[rank]),
        }

    def close(self) -> None:
        """Leave the group; the server may have ended."""
        if self.group is not None:
            leave_group(self.group)


class _Broadcasting:
    """Receives gathered tensors, and broadcasts them in order as they become complete."""

    def __init__(self, group: dist.ProcessGroup | None, end: BroadcastEnd) -> None:
        whole, self.group, self.device = end.broadcast.whole, group, end.platform.device_type
        self.kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = {
            name: (TORCH_TYPES[dtype_of(entry, whole.dtype)], entry.shape)
            for name, entry in whole.table(end.rank).items()
        }
        self.left = [*reversed(end.broadcast.order)] if self.kinds else []
        self.there: dict[str, Tensor] = {}
        self.whole: set[str] = set()
        self.failed: RuntimeError | None = None

    def open(self, name: str) -> Tensor:
        """Return the buffer of a tensor."""
        if name not in self.there:
            dtype, shape = self.kinds[name]
            self.there[name] = torch.empty(shape, dtype=dtype, device=self.device)
        return self.there[name]

    def close(self, name: str) -> None:
        """Mark a tensor as complete; after a failed broadcast the other ranks still gather."""
        tick()
        self.whole.add(name)
        while self.left and self.left[-1] in self.whole:
            tensor = self.there.pop(self.left.pop())
            try:
                if self.failed is None:
                    dist.broadcast(tensor, group_src=0, group=self.group)
            except RuntimeError as error:
                self.failed = error

    def finish(self) -> None:
        """Raise if a broadcast has failed.

        Raises:
            ReshardError: The server has ended, or does not accept the weights.
        """
        if self.failed is not None:
            raise ReshardError(f"a server did not accept the weights: {self.failed}")
        assert not self.left, f"{len(self.left)} tensors were not sent"
