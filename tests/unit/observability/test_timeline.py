"""The memory timeline as data and as a picture; matplotlib is not imported before it is drawn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.errors import OutputError
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.observability.timeline_chart import write_timeline

MIB = 1 << 20


def timeline(steps: int = 1) -> list[MeasuredSnapshot]:
    moments = [
        MeasuredSnapshot(
            label="bring kv_cache", phase="rollout", region_bytes={"kv_cache": 8 * MIB}
        ),
        MeasuredSnapshot(
            label="rollout",
            phase="rollout",
            region_bytes={"rollout_weights": 2 * MIB, "kv_cache": 8 * MIB},
            seconds=2.5,
            allocated_bytes=11 * MIB,
            predicted_bytes=10 * MIB,
        ),
        MeasuredSnapshot(label="release kv_cache", phase="train", region_bytes={}),
        MeasuredSnapshot(
            label="train",
            phase="train",
            region_bytes={"actor_weights": 4 * MIB, "another": 1},
            predicted_bytes=4 * MIB,
        ),
    ]
    return moments * steps


def size_of_png(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_the_data_has_one_record_for_each_moment_of_each_worker(tmp_path: Path) -> None:
    workers = {"worker 0": timeline(), "worker 1": timeline()}
    write_timeline(tmp_path, workers, capacity_bytes=16 * MIB)
    lines = (tmp_path / "memory.jsonl").read_text("ascii").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 8
    assert records[5] == {
        "worker": "worker 1",
        "index": 1,
        "phase": "rollout",
        "label": "rollout",
        "seconds": 2.5,
        "region_bytes": {"rollout_weights": 2 * MIB, "kv_cache": 8 * MIB},
        "host_bytes": {},
        "total_bytes": 10 * MIB,
        "predicted_bytes": 10 * MIB,
        "allocated_bytes": 11 * MIB,
    }
    assert records[2]["total_bytes"] == 0
    assert records[2]["predicted_bytes"] is None


@pytest.mark.nightly
def test_the_picture_grows_with_the_workers_up_to_eight_and_with_the_moments(
    tmp_path: Path,
) -> None:
    def size(workers: int, steps: int) -> tuple[int, int]:
        made = {f"worker {rank}": timeline(steps) for rank in range(workers)}
        folder = tmp_path / f"{workers} {steps}"
        write_timeline(folder, made, capacity_bytes=None)
        return size_of_png(folder / "memory.png")

    # 120 dots an inch: 2.4 inches a panel, 1.5 for the names below; 0.3 inches a moment and 2.6
    # for the legend.
    assert size(1, 1) == (round(120 * 8.6), round(120 * 3.9))
    assert size(2, 10) == (round(120 * 14.6), round(120 * 6.3))
    assert size(9, 1) == (round(120 * 8.6), round(120 * 20.7))
    assert len((tmp_path / "9 1" / "memory.jsonl").read_text("ascii").splitlines()) == 9 * 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(OutputError, match="cannot be written"):
        write_timeline(tmp_path / "file", {"worker 0": timeline()}, capacity_bytes=None)


def test_nothing_is_drawn_by_an_import() -> None:
    code = (
        "import sys, mindrl.observability.timeline, mindrl.programs.entry\n"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
