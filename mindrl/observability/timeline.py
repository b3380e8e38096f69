"""The memory timeline of workers: what lay on each device, moment by moment, as data and drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mindrl.observability.memory_snapshot import MeasuredSnapshot
from mindrl.observability.output_files import JsonLinesFile

Timelines = Mapping[str, Sequence[MeasuredSnapshot]]
"""The moments of each worker, in order, by the name that people know it by: `worker 0`."""


def write_timeline(folder: Path, workers: Timelines, *, capacity_bytes: int | None) -> None:
    """Write `memory.jsonl`, which grows where it is there, and `memory.png`.

    A capacity of a device is drawn as a line; None draws none.

    Raises:
        OutputError: A file cannot be written.
    """
    data = JsonLinesFile(folder / "memory.jsonl")
    for worker, moments in workers.items():
        records = enumerate(map(vars, moments))
        data.append(*({"worker": worker, "index": index, **each} for index, each in records))
    data.close()
    # Imported late: matplotlib takes a second, and most processes never draw.
    from mindrl.observability.timeline_chart import draw_timeline  # noqa: PLC0415

    draw_timeline(folder / "memory.png", workers, capacity_bytes=capacity_bytes)
