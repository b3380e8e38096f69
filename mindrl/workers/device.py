"""The device of a worker, as its roles share it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mindrl.config.layout_keys import Role
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import DEAD_AFTER_USE, ROLE_REGIONS, Region
from mindrl.platform.device_memory import give_back_unused
from mindrl.platform.garbage import release_free_heap
from mindrl.platform.host_arena import HostArena
from mindrl.rollout.engine import RolloutEngine
from mindrl.training.engine import StatePart, TrainingEngine
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import RolloutRegion, StoredRegion


@dataclass(frozen=True, kw_only=True)
class WorkerDevice:
    """The account of the device, and the host memory behind it."""

    device_type: str
    ledger: DeviceLedger
    arena: HostArena
    plan: MemoryPlan
    held: dict[Region, StoredRegion] = field(default_factory=dict)
    """The state of the models."""

    def place(self, role: Role, engine: TrainingEngine) -> None:
        """Enter the state of a model into the account; what may leave has left the device then.

        Raises:
            DeviceMemoryError: It does not fit beside what is there.
        """
        for part, name in zip(StatePart, ROLE_REGIONS[role], strict=False):
            is_kept = name in self.plan.movable and name not in DEAD_AFTER_USE
            arena = self.arena if is_kept else None
            still = part is StatePart.PARAMETERS and engine.adapters is not None
            unchanging = engine.local_tensors().values() if still else ()
            tensors = engine.state(part)
            self.held[name] = StoredRegion(tensors, arena, self.device_type, unchanging)
            self.ledger.add(name, self.held[name])
        # Another role is going to be built.
        for name in ROLE_REGIONS[role]:
            if name in self.plan.movable:
                self.ledger.offload(name)
        release_free_heap()
        give_back_unused(self.device_type)

    def place_nothing(self, name: Region) -> None:
        """Enter a region that other ranks have, and that takes part where theirs is moved."""
        self.held[name] = StoredRegion((), None, self.device_type)
        self.ledger.add(name, self.held[name])
        if name in self.plan.movable:
            self.ledger.offload(name)

    def place_rollout(self, engine: RolloutEngine) -> None:
        """Enter a rollout engine into the account; it has left the device then.

        Raises:
            DeviceMemoryError: It does not fit beside what is there.
        """
        self.ledger.add(Region.ROLLOUT_WEIGHTS, RolloutRegion(engine, "weights"))
        self.ledger.add(Region.KV_CACHE, RolloutRegion(engine, "kv_cache"))
        engine.offload()

    def contents(self, name: Region, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return tensors of a region to be read, wherever it lies since it was placed."""
        if name not in self.plan.movable:
            return tensors
        return {key: self.held[name].host_copy(tensor) for key, tensor in tensors.items()}

    def offload_when_read(self, name: Region) -> Callable[[Tensor], None] | None:
        """Return what takes the storage behind a tensor of a region away; None where it stays."""
        if name not in self.plan.movable:
            return None
        region = self.held[name]

        def leave(tensor: Tensor) -> None:
            if region.is_whole:
                self.ledger.note()
            region.offload_storage_of(tensor)

        return leave
