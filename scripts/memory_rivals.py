"""Device managers that scripts/bench_memory.py compares: ours, and the methods of others."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage

from mindrl.memory.schedule import NEEDS, ROLLOUT_REGIONS, Move, MoveKind, Phase, Region, after
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker
from mindrl.workers.device_regions import StoredRegion
from mindrl.workers.sharding_manager import ShardingManager

Regions = dict[Region, StoredRegion]

GRADIENTS = frozenset({Region.ACTOR_GRADIENTS, Region.CRITIC_GRADIENTS})
TRAINED_WEIGHTS = frozenset({Region.ACTOR_WEIGHTS, Region.CRITIC_WEIGHTS})


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a system without a schedule treats the regions."""

    reused: frozenset[Region]
    """Regions with a permanent place on the host; others get new memory whenever they leave."""
    dropped: frozenset[Region]
    """Regions that leave without a copy and return with undefined contents."""
    stays: frozenset[Region]
    """Regions that stay on the device from their first call until the next rollout reads them."""


HABITS = {
    "call by call": Habits(reused=TRAINED_WEIGHTS, dropped=GRADIENTS, stays=frozenset()),
    "weights stay": Habits(
        reused=TRAINED_WEIGHTS, dropped=GRADIENTS, stays=frozenset({Region.ACTOR_WEIGHTS})
    ),
    "everything": Habits(reused=frozenset(), dropped=frozenset(), stays=frozenset()),
}


class Clocked(ShardingManager):
    """Counts the CPU seconds of each move, and the host memory of the regions."""

    host_bytes = 0

    def leave(self) -> None:
        """Record that the calls of a role are finished."""

    def bytes_on_host(self) -> int:
        """Return the bytes that the host keeps now."""
        raise NotImplementedError

    def _timed(self, move: Move) -> None:
        start = time.process_time()
        self._carry_out(move)
        self._add(f"seconds/{move.kind.value}", time.process_time() - start)
        self.host_bytes = max(self.host_bytes, self.bytes_on_host())


class Schedule(Clocked):
    """Our schedule: a phase lasts until the next one starts."""

    def __init__(self, worker: ActorHybridWorker) -> None:
        """Manage the device of a worker."""
        device, resharder = worker.device, worker.sharding_manager.resharder
        super().__init__(
            device.ledger, resharder, movable=device.plan.movable, device_type=device.device_type
        )
        self.arena = device.arena

    def bytes_on_host(self) -> int:
        """Return the size of the arena."""
        return self.arena.nbytes


class CopiedRegion:
    """The storages of one of our regions, copied to the host every time, changed or not."""

    def __init__(self, ours: StoredRegion, *, keeps: bool, reuses: bool) -> None:
        """Store the storages, which must be on the device."""
        self.stored = [(each.storage, each.nbytes) for each in ours.stored.values()]
        self.nbytes = ours.nbytes
        self.keeps = keeps
        self.reuses = reuses
        self.host: dict[int, Tensor] = {}

    def device_bytes(self) -> int:
        """Return the bytes on the device."""
        return sum(storage.nbytes() for storage, _ in self.stored)

    def bytes_on_host(self) -> int:
        """Return the bytes of the region on the host."""
        return sum(copy.nbytes for copy in self.host.values())

    def offload(self) -> int:
        """Move to the host; return the copied bytes."""
        copied = 0
        for index, (storage, nbytes) in enumerate(self.stored):
            if self.keeps and storage.nbytes():
                if index not in self.host:
                    pinned = storage.device.type != "cpu"
                    self.host[index] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
                self.host[index].copy_(as_bytes(storage))
                copied += nbytes
            storage.resize_(0)
        return copied

    def onload(self) -> int:
        """Move to the device; return the copied bytes."""
        copied = 0
        for index, (storage, nbytes) in enumerate(self.stored):
            storage.resize_(nbytes)
            if self.keeps:
                as_bytes(storage).copy_(self.host[index])
                copied += nbytes
                if not self.reuses:
                    del self.host[index]
        return copied

    def changed(self) -> None:
        """Do nothing: the region is copied every time."""


class CallByCall(Clocked):
    """Loads the regions that a call needs, and offloads them after the call."""

    def __init__(self, worker: ActorHybridWorker, habits: Habits) -> None:
        """Manage the device of a worker with copied regions."""
        device, resharder = worker.device, worker.sharding_manager.resharder
        super().__init__(
            device.ledger, resharder, movable=device.plan.movable, device_type=device.device_type
        )
        self.habits = habits

    def enter(self, phase: Phase) -> None:
        """Load missing regions; before the call only weights that were read are released."""
        if phase is not self.phase:
            self._go(self._way_into(phase))
            self.phase = phase

    def leave(self) -> None:
        """Offload all regions except those that stay."""
        there = [region for region in Region if region in self.resident - self.habits.stays]
        rollout = [Region.KV_CACHE] if ROLLOUT_REGIONS & set(there) else []
        gone = rollout + [region for region in there if region not in ROLLOUT_REGIONS]
        self._go(Move(MoveKind.OFFLOAD, region) for region in gone)
        self.phase = None

    def bytes_on_host(self) -> int:
        """Return the bytes of all regions on the host."""
        regions = self.ledger.regions.values()
        return sum(each.bytes_on_host() for each in regions if isinstance(each, CopiedRegion))

    def _way_into(self, phase: Phase) -> Iterator[Move]:
        weights, rollout = Region.ACTOR_WEIGHTS, Region.ROLLOUT_WEIGHTS
        into = NEEDS[phase]
        first = (weights, rollout) if phase is Phase.ROLLOUT else into
        for region in first:
            if region not in self.resident:
                yield Move(MoveKind.ONLOAD, region)
        if phase is Phase.ROLLOUT:
            yield Move(MoveKind.RESHARD, rollout)
            yield Move(MoveKind.OFFLOAD, weights)
            yield Move(MoveKind.ONLOAD, Region.KV_CACHE)

    def _go(self, way: Iterator[Move]) -> None:
        for move in way:
            self._timed(move)
            self.resident = after(self.resident, [move])

    def _copied(self, way: str, region: Region, nbytes: int) -> None:
        if nbytes:
            self._add(f"bytes/{way}_{region.value}", nbytes)


class Ways:
    """Gives the device of one worker to one manager after another."""

    def __init__(self, worker: ActorHybridWorker) -> None:
        """Store the state of our schedule."""
        self.worker = worker
        ledger = worker.device.ledger
        found = ledger.regions.items()
        self.ours: Regions = {
            name: region for name, region in found if isinstance(region, StoredRegion)
        }
        self.sync = worker.sharding_manager.resharder
        self.on_last_read = self.sync.on_last_read
        self.names = ("schedule", *HABITS)

    def take(self, name: str) -> Clocked:
        """Empty the device and give it to a manager."""
        worker, ledger = self.worker, self.worker.device.ledger
        self._bring_all()
        # Only the schedule releases weights early, when they have been read.
        self.sync.on_last_read = self.on_last_read if name == "schedule" else None
        for region, ours in self.ours.items():
            ours.changed()
            ledger.regions[region] = (
                ours if name == "schedule" else copied_region(region, ours, HABITS[name])
            )
            ledger.offload(region)
        manager = Schedule(worker) if name == "schedule" else CallByCall(worker, HABITS[name])
        worker.sharding_manager = manager
        return manager

    def _bring_all(self) -> None:
        ledger = self.worker.device.ledger
        ledger.offload(Region.KV_CACHE)
        for region in self.ours:
            if not ledger.regions[region].device_bytes():
                ledger.onload(region)


def copied_region(name: Region, ours: StoredRegion, habits: Habits) -> CopiedRegion:
    """Return a region that is copied as in other systems."""
    return CopiedRegion(ours, keeps=name not in habits.dropped, reuses=name in habits.reused)


def as_bytes(storage: UntypedStorage) -> Tensor:
    """Return a storage as a tensor of its bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
