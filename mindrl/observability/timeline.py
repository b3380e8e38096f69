"""The memory timeline of workers: what lay on each device, moment by moment, as data and drawn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindrl.observability.json_lines import JsonLinesFile

MOST_PANELS = 8
"""Workers that are drawn; the data has all."""


@dataclass(frozen=True, kw_only=True)
class TimelineMoment:
    """What lay on one device at one moment."""

    label: str
    """The move that had just been made, or the phase."""
    phase: str
    """Where the moment belongs to, the way into that phase included."""
    region_bytes: Mapping[str, int]
    host_bytes: Mapping[str, int] = field(default_factory=dict)
    """What lay on the host alone. A region that is in neither place was released for good."""
    seconds: float = 0.0
    """Since the worker began."""
    allocated_bytes: int | None = None
    """By the allocator of the device, the most since the moment before; None where it has none."""
    predicted_bytes: int | None = None
    """What a plan says of all regions together; None where it does not speak of this moment."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all regions."""
        return sum(self.region_bytes.values())


@dataclass(frozen=True, kw_only=True)
class WorkerTimeline:
    """One worker's moments, in order."""

    worker: str
    """As a person knows it: `worker 0`."""
    moments: Sequence[TimelineMoment]


def write_timeline(
    folder: Path,
    workers: Sequence[WorkerTimeline],
    *,
    capacity_bytes: int | None,
    name: str = "memory",
) -> None:
    """Write `<name>.jsonl`, which grows where it is there, and `<name>.png`.

    Args:
        folder: Of both files.
        workers: The chart shows the first `MOST_PANELS`, each in a panel of its own.
        capacity_bytes: Of a device; None draws no line.
        name: Of both files.

    Raises:
        OutputError: A file cannot be written.
    """
    data = JsonLinesFile(folder / f"{name}.jsonl")
    for timeline in workers:
        data.append(*_records(timeline))
    data.close()
    # Imported late: matplotlib takes a second, and most processes never draw.
    from mindrl.observability.timeline_chart import draw_timeline  # noqa: PLC0415

    draw_timeline(folder / f"{name}.png", workers[:MOST_PANELS], capacity_bytes=capacity_bytes)


def _records(timeline: WorkerTimeline) -> Iterator[dict[str, object]]:
    for index, moment in enumerate(timeline.moments):
        yield {
            "worker": timeline.worker,
            "index": index,
            "phase": moment.phase,
            "label": moment.label,
            "seconds": moment.seconds,
            "region_bytes": dict(moment.region_bytes),
            "host_bytes": dict(moment.host_bytes),
            "total_bytes": moment.total_bytes,
            "predicted_bytes": moment.predicted_bytes,
            "allocated_bytes": moment.allocated_bytes,
        }
