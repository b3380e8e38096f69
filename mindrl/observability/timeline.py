"""The memory timeline of workers: what lay on each device, moment by moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class MemorySnapshot:
    """The regions on a device at a moment, by their names."""

    label: str
    """The move that had just been made, or the phase."""
    phase: str
    """Where the moment belongs to, the way into that phase included."""
    region_bytes: Mapping[str, int]
    total_bytes: int = field(init=False)
    """Bytes of all regions."""

    def __post_init__(self) -> None:
        """Add the regions up."""
        object.__setattr__(self, "total_bytes", sum(self.region_bytes.values()))


@dataclass(frozen=True, kw_only=True)
class MeasuredSnapshot(MemorySnapshot):
    """What a worker found, and what had been predicted."""

    host_bytes: Mapping[str, int] = field(default_factory=dict)
    """What lay on the host alone. A region that is in neither place was released for good."""
    seconds: float = 0.0
    """Since the worker began."""
    allocated_bytes: int | None = None
    """By the allocator of the device, the most since the moment before; None where it has none."""
    predicted_bytes: int | None = None
    """What a plan says of all regions together; None where it does not speak of this moment."""


Timelines = Mapping[str, Sequence[MeasuredSnapshot]]
"""The moments of each worker, in order, by the name that people know it by: `worker 0`."""
