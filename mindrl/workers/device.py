"""The device of a worker, shared by its roles."""

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
    """Memory ledger of the device, and the host memory for offloaded regions."""

    device_type: str
    ledger: DeviceLedger
    arena: HostArena
    plan: MemoryPlan
    held: dict[Region, StoredRegion] = field(default_factory=dict)
    """State of the models, by region."""
    turns: dict[Region, list[StoredRegion]] = field(default_factory=dict)
    """Weights of several models that take turns as one region, in the order of their numbers."""

    def place(self, role: Role, engine: TrainingEngine) -> None:
        """Register the state of a model, then offload its movable regions.

        Raises:
            DeviceMemoryError: It does not fit.
        """
        for part, name in zip(StatePart, ROLE_REGIONS[role], strict=False):
            is_kept = name in self.plan.movable and name not in DEAD_AFTER_USE
            arena = self.arena if is_kept else None
            still = part is StatePart.PARAMETERS and engine.adapters is not None
            unchanging = engine.local_tensors().values() if still else ()
            self.held[name] = StoredRegion(
                engine.state(part), arena, self.device_type, unchanging, engine.complete_weights
            )
            self.ledger.add(name, self.held[name])
        # Make room: another role is built next.
        for name in ROLE_REGIONS[role]:
            if name in self.plan.movable:
                self.ledger.offload(name)
        release_free_heap()
        give_back_unused(self.device_type)

    def place_in_turn(self, role: Role, engine: TrainingEngine) -> None:
        """Register the weights of a model that takes turns with the one placed; offload them.

        Raises:
            DeviceMemoryError: They do not fit.
        """
        name = ROLE_REGIONS[role][0]
        assert name in self.plan.movable, "validated: models that take turns leave the device"
        tensors = engine.state(StatePart.PARAMETERS)
        region = StoredRegion(tensors, self.arena, self.device_type)
        self.turns.setdefault(name, [self.held[name]]).append(region)
        self.ledger.replace(name, region)
        self.ledger.offload(name)
        release_free_heap()
        give_back_unused(self.device_type)

    def place_nothing(self, name: Region) -> None:
        """Register an empty region on a rank that takes part when other ranks move theirs."""
        self.held[name] = StoredRegion((), None, self.device_type)
        self.ledger.add(name, self.held[name])
        if name in self.plan.movable:
            self.ledger.offload(name)

    def place_rollout(self, engine: RolloutEngine) -> None:
        """Register a rollout engine, then offload it.

        Raises:
            DeviceMemoryError: It does not fit.
        """
        self.ledger.add(Region.ROLLOUT_WEIGHTS, RolloutRegion(engine, "weights"))
        self.ledger.add(Region.KV_CACHE, RolloutRegion(engine, "kv_cache"))
        engine.offload()

    def contents(self, name: Region, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of a region for reading: on the device, or the host's copies."""
        if name not in self.plan.movable:
            return tensors
        return {key: self.held[name].host_copy(tensor) for key, tensor in tensors.items()}

    def offload_when_read(self, name: Region) -> Callable[[Tensor], None] | None:
        """Return a callback that offloads a tensor's storage; None if the region never leaves."""
        if name not in self.plan.movable:
            return None
        region = self.held[name]

        def leave(tensor: Tensor) -> None:
            if region.is_complete:
                self.ledger.note()
            region.offload_storage_of(tensor)

        return leave
