"""The doctor's self-test on the CPU: what it prints, and what it leaves behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from disturbances import WORKERS, disturbance, environment
from program import gone, piped

pytestmark = pytest.mark.e2e


def started(folder: Path, around: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    """Start the self-test; what it makes goes below the folder."""
    command = [sys.executable, "cli/doctor.py", "--device", "cpu", "--self-test", *options]
    return piped(command, {**os.environ, "TMPDIR": str(folder), **around})


def ended(process: subprocess.Popen[str]) -> tuple[str, str, list[psutil.Process]]:
    """Wait for the end; returns what was printed, and all processes that were seen below."""
    seen: dict[int, psutil.Process] = {}
    while process.poll() is None:
        seen |= {each.pid: each for each in psutil.Process(process.pid).children(recursive=True)}
        time.sleep(0.5)
    return *process.communicate(), [*seen.values()]


@pytest.mark.nightly
def test_all_trials_pass_with_figures_and_nothing_is_left_behind(tmp_path: Path) -> None:
    process = started(tmp_path, {}, "--json")
    printed, errors, processes = ended(process)
    assert process.returncode == 0, errors
    answer = json.loads(printed)
    assert (answer["device"], answer["failed"], answer["folder"]) == ("cpu", 0, None)
    figures = {each["what"]: each["figures"] for each in answer["trials"]}
    assert len(figures) == 7
    for what in ("collectives", "copies", "offload and onload"):
        assert figures[what].pop("max_difference") == 0.0
    assert figures["copies"]["to_host_gb_per_second"] > 0
    assert figures["log-prob gap"]["mean_gap_nats"] < 1e-4
    assert figures["log-prob gap"]["tokens"] > 100
    if answer["devices"] == 2:
        # Each rank of the trainer has half of the weights, and needs the other.
        assert figures["reshard"]["received_bytes"] > 10_000_000
    assert len(processes) > 3
    assert gone(processes, timeout_seconds=10)
    assert not [*tmp_path.glob("mindrl-self-test-*")]


@pytest.mark.nightly
def test_a_worker_that_dies_is_named_with_its_log_and_what_follows_is_not_tried(
    tmp_path: Path,
) -> None:
    killed = disturbance("decode", WORKERS[1], "SIGKILL", call=1)
    process = started(tmp_path, environment(tmp_path / "disturbed", [killed]))
    printed, _, processes = ended(process)
    assert process.returncode == 1
    assert "pass  reshard: " in printed
    assert "FAIL  log-prob gap: worker-1 (rank 1, process " in printed
    assert "died: its process " in printed
    (folder,) = tmp_path.glob("mindrl-self-test-*")
    assert f"1 of 7 trials failed; worker logs: {folder}/logs" in printed
    assert (folder / "logs/worker_1.log").is_file()
    assert gone(processes, timeout_seconds=10)


def test_a_cluster_of_others_is_not_tried() -> None:
    process = started(Path("/tmp"), {"RAY_ADDRESS": "192.0.2.10:6379"})
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "RAY_ADDRESS=192.0.2.10:6379: the self-test starts its own Ray" in errors
