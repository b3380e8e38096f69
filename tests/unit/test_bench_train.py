"""The parts of the training side's benchmark that need no Megatron, at sizes of seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_train.py"


@pytest.mark.nightly
@pytest.mark.slow
def test_log_probs_need_less_than_two_chunks_and_balanced_replicas_are_equal_to_a_thousandth(
    tmp_path: Path,
) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(file)]
    done = subprocess.run(
        [*command, "--only", "balance", "memory"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text("utf-8"))

    for spread in results["balance"]["spread"].values():
        assert 1.0 <= spread["balanced"]["worst"] < 1.001 < spread["in order"]["mean"]
    runs = [run for run in results["memory"]["runs"] if not run["whole"]]
    # Two types of weight, two sizes of a chunk, without and with gradients.
    assert len(runs) == 8
    # One chunk of logits, half of one in bfloat16, and blocks of an eighth.
    assert all(run["allocated"] < 1.6 * run["chunk_bytes"] for run in runs)
