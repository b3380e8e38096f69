"""Regions that record their calls. tests/distributed uses the real ones."""

from mindrl.memory.schedule import DEAD_AFTER_USE, NEEDS, Phase, Region
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.sharding_manager import ShardingManager

BYTES = {
    Region.ACTOR_WEIGHTS: 100,
    Region.ACTOR_GRADIENTS: 200,
    Region.ACTOR_OPTIMIZER: 600,
    Region.ROLLOUT_WEIGHTS: 90,
    Region.KV_CACHE: 400,
    Region.REFERENCE_WEIGHTS: 100,
    Region.CRITIC_WEIGHTS: 50,
    Region.CRITIC_GRADIENTS: 100,
    Region.CRITIC_OPTIMIZER: 300,
    Region.REWARD_WEIGHTS: 70,
    Region.TEACHER_WEIGHTS: 80,
}
IN_FLIGHT = 10
ALL = frozenset(BYTES)
MOVABLE = ALL - {Region.ROLLOUT_WEIGHTS, Region.KV_CACHE}


class RecordedRegion:
    """Takes its bytes while it is on the device, and copies only what has changed."""

    def __init__(self, name: Region, calls: list[str], *, is_there: bool) -> None:
        self.name = name
        self.calls = calls
        self.nbytes = BYTES[name]
        self.is_there = is_there
        self.is_clean = True
        self.keeps = name not in DEAD_AFTER_USE

    def device_bytes(self) -> int:
        return self.nbytes if self.is_there else 0

    def onload(self) -> int:
        self.calls.append(f"bring {self.name.value}")
        self.is_there = True
        return 0 if self.name in DEAD_AFTER_USE else self.nbytes

    def offload(self) -> int:
        self.calls.append(f"release {self.name.value}")
        self.is_there = False
        copied = 0 if self.is_clean or self.name in DEAD_AFTER_USE else self.nbytes
        self.is_clean = True
        return copied

    def changed(self) -> None:
        self.is_clean = False

    def complete(self) -> None:
        pass


class RecordedResharder:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def reshard(self) -> None:
        self.calls.append("reshard")

    def bytes_moved(self) -> dict[str, int]:
        return {"sent": 1, "received": 2, "local": 3, "needed": 2, "in_flight": IN_FLIGHT}


def manager(
    *way: Phase,
    movable: frozenset[Region] = MOVABLE,
    regions: frozenset[Region] = ALL,
    capacity: int | None = None,
) -> tuple[ShardingManager, list[str]]:
    """Build a manager, go a way, and forget what was recorded on it."""
    calls: list[str] = []
    ledger = DeviceLedger(capacity)
    engine = set(NEEDS[Phase.ROLLOUT])
    for name in regions:
        # As after the start: what may leave has left, and the engine sleeps.
        there = name not in movable | engine
        ledger.add(name, RecordedRegion(name, calls, is_there=there))
    built = ShardingManager(
        ledger, RecordedResharder(calls), movable=movable & regions, device_type="cpu"
    )
    for phase in way:
        built.enter(phase)
    built.flush_metrics()
    calls.clear()
    return built, calls
