"""Transfer of trained weights to rollout replicas with their own devices and world.

A link is a group over all training ranks and the ranks of one replica, separate from the default
groups, and a plan for it. If a replica dies, only its link fails.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Literal, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.errors import ReshardError
from mindrl.models.placement import Box
from mindrl.models.sharding import Sharding
from mindrl.platform.device import Platform
from mindrl.platform.rendezvous import (
    Seat,
    hold_store,
    join_extra_group,
    leave_group,
    link_name,
    own_store,
    reach_store,
)
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import ReshardPlan
from mindrl.resharding.reshard import Reshard, WeightSink, WeightSource
from mindrl.training.engine import TrainingEngine
from mindrl.workers.link_meeting import missing_ranks, unless_called_off
from mindrl.workers.weight_sync import TrainingWeights

logger = logging.getLogger(__name__)
_ADDRESS = "where links are joined"


@dataclass(frozen=True, kw_only=True)
class LinkRoutes:
    """Planned routes from the training ranks, which come first, to a replica's ranks."""

    source: Sharding
    target: Sharding
    plan_of: Callable[[int], ReshardPlan]
    """Returns the plan for a replica."""
    training_ranks: int
    replicas: int
    """Number of replicas, which are served in turn."""
    timeout_seconds: float
    """Longest wait of a training rank for a peer."""
    verify: Literal["off", "first", "always"]
    """Which transfers of a link to verify: the received weights are compared."""
    later: "LinkRoutes | None" = None
    """Routes of all transfers of a link but its first: without weights that never change, which
    stay in the replica. None if all weights are trained."""

    def patience_seconds(self, rank: int) -> float:
        """Return the longest wait of a rank in a transfer.

        A replica waits while the training ranks wait for each replica before it.
        """
        return self.timeout_seconds * (1 if rank < self.training_ranks else self.replicas + 1)

    def names(self, replica: int) -> tuple[str, ...]:
        """Return the names of a link's ranks for errors."""
        ranks = len(self.source.held_by) - self.training_ranks
        return (
            *(f"training rank {rank}" for rank in range(self.training_ranks)),
            *(f"rank {rank} of replica {replica}" for rank in range(ranks)),
        )


@dataclass
class WeightLink:
    """An open link between a replica and all training ranks, on one of these ranks."""

    first: Reshard
    """Transfer of all weights."""
    later: Reshard
    """Transfer of the trained weights; the same if all are."""
    verify: Literal["off", "first", "always"]
    frozen: str | None = None
    """Prefix of the names of weights that are not trained."""

    def __post_init__(self) -> None:
        """Start before the first transfer."""
        self.reshard = self.first

    @property
    def kept(self) -> str | None:
        """Prefix of the weights that the next transfer leaves as they are; None if of none."""
        return self.frozen if self.first.runs else None

    def run(self, source: WeightSource, sink: WeightSink | None = None) -> None:
        """Transfer the weights; a rank that needs none has no sink. A collective over the link.

        Raises:
            ReshardError: As in `Reshard.run`; the link cannot be used again.
        """
        self.reshard = self.later if self.first.runs else self.first
        is_first = not self.reshard.runs
        verify = self.verify == "always" or (self.verify == "first" and is_first)
        try:
            self.reshard.run(source, sink or _Nothing(), verify=verify)
        except dist.DistError as error:
            raise ReshardError(f"the store of the link is lost: {error}") from error

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes that this rank has in flight."""
        return int(self.first.plan.peak_staging[self.first.channel.group.rank()])

    def bytes_moved(self) -> dict[str, int]:
        """Return the bytes of the last transfer on this rank, and the minimum to receive."""
        plan, rank = self.reshard.plan, self.reshard.channel.group.rank()
        return {
            "sent": int(plan.sent[rank]),
            "received": int(plan.received[rank]),
            "needed": int(plan.lower_bound[rank]),
        }

    def close(self) -> None:
        """Leave the group; other ranks may have ended."""
        leave_group(self.reshard.channel.group)


@dataclass(frozen=True, kw_only=True)
class LinkEnd:
    """Parameters of a rank for joining links."""

    platform: Platform
    routes: LinkRoutes
    rank: int
    """Rank in each link."""

    @property
    def timeout_seconds(self) -> float:
        """Longest wait of a training rank for a peer."""
        return self.routes.timeout_seconds

    def join(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        replica: int,
        generation: int,
    ) -> WeightLink:
        """Join a link with all its ranks through a store. A collective over them.

        Raises:
            ReshardError: Names the ranks that did not join in time.
        """
        routes, name = self.routes, link_name(replica, generation)
        ours, names = dist.PrefixStore(name, store), routes.names(replica)  # type: ignore[attr-defined]
        seconds = routes.timeout_seconds
        try:
            ours.set(f"here {self.rank}", "")
            if missing := missing_ranks(ours, len(names), seconds):
                who = ", ".join(names[rank] for rank in missing)
                raise ReshardError(f"{who} did not join {name} within {seconds:g} s")
            seat = Seat(rank=self.rank, world_size=len(names), local_device=0)
            patience = routes.patience_seconds(self.rank)
            limit = timedelta(seconds=patience)
            # A wait on a store blocks all other users of its connection.
            own = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined]
            make = partial(join_extra_group, self.platform, own, seat, name, limit)
            group = unless_called_off(ours, make) if self.platform.kind == "cpu" else make()
        except RuntimeError as error:
            raise ReshardError(f"cannot create {name}: {error}") from error
        device = torch.device(self.platform.device_type)

        def opened(routes: LinkRoutes, what: str) -> Reshard:
            shards = dist.PrefixStore(what, ours)  # type: ignore[attr-defined]
            channel = Channel(group, shards, device, patience, names)
            tables = routes.source.table(self.rank), routes.target.table(self.rank)
            return Reshard(routes.plan_of(replica), channel, *tables)

        first = opened(routes, "reshard")
        later = first if routes.later is None else opened(routes.later, "later reshards")
        logger.info("%s is open", name)
        return WeightLink(first, later, routes.verify, routes.source.frozen)


class TrainingLink(Protocol):
    """A link as seen by a training rank."""

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes that this rank has in flight."""

    def run(self, source: WeightSource) -> None:
        """Send the weights. A collective; raises ReshardError if they do not arrive."""

    def bytes_moved(self) -> dict[str, int]:
        """Return the bytes of a transfer on this rank."""

    def close(self) -> None:
        """Leave the group; other ranks may have ended."""


class TrainingEnd(Protocol):
    """Parameters of a training rank for joining links."""

    @property
    def rank(self) -> int:
        """Rank on the training side."""

    @property
    def timeout_seconds(self) -> float:
        """Longest wait for a peer."""

    def join(
        self,
        store: dist.Store,  # type: ignore[name-defined]
        replica: int,
        generation: int,
    ) -> TrainingLink:
        """Join a replica's ranks through a store; raises ReshardError if they do not join."""


@dataclass
class WeightLinks:
    """The training side of all links, on one training rank. Needs the default process group."""

    end: TrainingEnd
    model: TrainingEngine | None
    """The actor; None on a rank without it."""
    links: dict[int, TrainingLink] = field(default_factory=dict)
    """Open links, by replica."""
    metrics: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        """Open the store for joining links on rank 0, or connect to it. A collective."""
        timeout, default = timedelta(seconds=self.end.timeout_seconds), own_store("links")
        if self.end.rank == 0:
            self.store, self.address = hold_store(timeout)
            default.set(_ADDRESS, f"{self.address[1]} {self.address[0]}")
            return
        port, host = default.get(_ADDRESS).decode().split(" ", 1)
        self.address = (host, int(port))
        self.store = reach_store(self.address, timeout)

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes that this rank has in flight: links take turns."""
        return max((each.in_flight_bytes for each in self.links.values()), default=0)

    def open(self, replica: int, generation: int) -> str | None:
        """Join a replica: see `TrainingWorker.open_link`."""
        self.drop(replica)
        try:
            self.links[replica] = self.end.join(self.store, replica, generation)
        except ReshardError as error:
            return str(error)
        return None

    def send(self, replicas: Sequence[int]) -> dict[int, str]:
        """Send the weights: see `TrainingWorker.send_weights`."""
        began, failed = time.perf_counter(), dict[int, str]()
        for replica in replicas:
            try:
                self._send(replica)
            except ReshardError as error:
                failed[replica] = str(error)
        # One rank may have finished with a replica that another one has lost.
        said: list[dict[int, str]] = [{}] * dist.get_world_size()
        dist.all_gather_object(said, failed)
        failed = {replica: why for each in reversed(said) for replica, why in each.items()}
        for replica in failed:
            self.drop(replica)
        self.metrics["seconds/send_weights"] += time.perf_counter() - began
        return failed

    def drop(self, replica: int) -> None:
        """Close a link if there is one."""
        if link := self.links.pop(replica, None):
            link.close()

    def flush_metrics(self) -> dict[str, float]:
        """Return seconds and bytes since the last call."""
        metrics, self.metrics = dict(self.metrics), defaultdict(float)
        return metrics

    def _send(self, replica: int) -> None:
        link = self.links.get(replica)
        if link is None:
            raise ReshardError(f"no link to replica {replica} exists")
        link.run(TrainingWeights.of(self.model))
        for name, nbytes in link.bytes_moved().items():
            self.metrics[f"bytes/reshard_{name}"] += nbytes


class ReceivingEnd:
    """The link of a rank of a replica, recreated whenever the training side asks."""

    def __init__(self, end: LinkEnd) -> None:
        self.end = end
        self.link: WeightLink | None = None

    def join(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Join the training ranks through the store at an address.

        Raises:
            ReshardError: Names the ranks that did not join in time, or the address.
        """
        self.leave()
        seconds = self.end.routes.timeout_seconds
        try:
            store = reach_store(address, timedelta(seconds=seconds))
        except RuntimeError as error:
            where = f"{address[0]}:{address[1]}"
            raise ReshardError(f"cannot find the training side at {where}: {error}") from error
        self.link = self.end.join(store, replica, generation)

    def leave(self) -> None:
        """Close the link if there is one."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    @property
    def kept(self) -> str | None:
        """Prefix of the weights that the next transfer leaves as they are; None if of none."""
        return None if self.link is None else self.link.kept

    def receive(self, sink: WeightSink) -> dict[str, int]:
        """Receive the engine's weights; return the bytes of the transfer.

        Raises:
            ReshardError: As in `WeightLink.run`; the link is then closed.
        """
        if self.link is None:
            raise ReshardError("this replica has joined no link, or has lost it")
        try:
            self.link.run(_Nothing(), sink)
        except ReshardError:
            self.leave()
            raise
        return self.link.bytes_moved()


class _Nothing:
    """Empty source or sink of a rank that is on the other side of a link."""

    def read(self, name: str, box: Box) -> Tensor:
        raise AssertionError(f"this rank does not hold {name} {box}")

    def release(self, name: str) -> NoReturn:
        raise AssertionError(f"this rank does not hold {name}")

    open = close = release
