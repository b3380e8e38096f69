"""The memory timeline of workers: what lay on each device, moment by moment, as data and drawn."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mindrl.observability.json_lines import JsonLinesFile
from mindrl.observability.memory_snapshot import WorkerTimeline

MOST_PANELS = 8
"""Workers that are drawn; the data has all."""


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
        yield {"worker": timeline.worker, "index": index, **vars(moment)}
