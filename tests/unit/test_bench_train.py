"""The benchmark of the training side, at sizes of a few seconds. It checks what it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_train.py"


@pytest.mark.slow
def test_the_benchmark_runs_and_its_packed_updates_have_the_gradient_of_the_padded_ones(
    tmp_path: Path,
) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--repeats", "1", "--json", str(file)]
    done = subprocess.run(
        [*command, "--only", "packing", "balance", "memory"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text("utf-8"))

    lengths, ways = results["packing"]["lengths"], results["packing"]["ways"]
    assert ways["8 sequences, packed"]["tokens"] == sum(lengths)
    assert ways["8 sequences, padded"]["tokens"] == 8 * max(lengths)
    assert ways["2 sequences, packed"]["passes"] == 4
    # Sums of a thousand float32 numbers, in another order.
    assert max(way["gradient_difference"] for way in ways.values()) < 1e-5
    for spread in results["balance"]["spread"].values():
        assert 1.0 <= spread["balanced"]["worst"] < 1.001 < spread["in order"]["mean"]
    runs = [run for run in results["memory"]["runs"] if not run["whole"]]
    # Two types of weight, two sizes of a chunk, without and with gradients.
    assert len(runs) == 8
    # One chunk of logits, half of one in bfloat16, and blocks of an eighth.
    assert all(run["allocated"] < 1.6 * run["chunk_bytes"] for run in runs)
