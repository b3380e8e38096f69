"""Memory timeline of workers: regions on each device at each moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class MemorySnapshot:
    """Regions on a device at a moment, by name."""

    label: str
    """The move that was just made, or the phase."""
    phase: str
    """Phase of the moment; moves into a phase belong to it."""
    region_bytes: Mapping[str, int]
    total_bytes: int = field(init=False)
    """Total bytes of all regions."""

    def __post_init__(self) -> None:
        """Compute the total."""
        object.__setattr__(self, "total_bytes", sum(self.region_bytes.values()))


@dataclass(frozen=True, kw_only=True)
class MeasuredSnapshot(MemorySnapshot):
    """Measured regions of a worker, and the prediction."""

    host_bytes: Mapping[str, int] = field(default_factory=dict)
    """Regions on the host only. A region in neither place was released permanently."""
    seconds: float = 0.0
    """Seconds since the worker started."""
    allocated_bytes: int | None = None
    """Peak of the device's allocator since the previous moment; None without one."""
    predicted_bytes: int | None = None
    """Planned total of all regions; None if the plan lacks this moment."""


Timelines = Mapping[str, Sequence[MeasuredSnapshot]]
"""Moments of each worker, in order, by name, such as `worker 0`."""
