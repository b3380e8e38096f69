"""The device of a worker, as its roles share it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torch import Tensor

from mindrl.memory.plan import MemoryPlan
from mindrl.memory.regions import DEAD_AFTER_USE, Region
from mindrl.platform.device_memory import give_back_unused
from mindrl.platform.heap import release_free_heap
from mindrl.platform.host_arena import HostArena
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.stored_region import StoredRegion


@dataclass(frozen=True, kw_only=True)
class WorkerDevice:
    """The account of the device, and the host memory behind it."""

    device_type: str
    ledger: DeviceLedger
    arena: HostArena
    plan: MemoryPlan

    @property
    def movable(self) -> frozenset[Region]:
        """What leaves the device while it is not needed."""
        return self.plan.movable

    def hold(self, name: Region, tensors: Iterable[Tensor]) -> StoredRegion:
        """Enter the storages behind some tensors into the account.

        Raises:
            DeviceMemoryError: They do not fit beside what is there.
        """
        is_kept = name in self.movable and name not in DEAD_AFTER_USE
        region = StoredRegion(tensors, self.arena if is_kept else None, self.device_type)
        self.ledger.add(name, region)
        return region

    def clear(self, names: Collection[Region]) -> None:
        """Let regions leave that may: another role is going to be built."""
        for name in names:
            if name in self.movable:
                self.ledger.offload(name)
        release_free_heap()
        give_back_unused(self.device_type)
