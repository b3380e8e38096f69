"""A worker that is stopped is found in time in whatever it does, and all stacks are in the logs."""

import json
import re
import time
from pathlib import Path

import psutil
import pytest
from program import Program, gone, start_program

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("line", "call", "saves"),
    [
        ("phase rollout begins", "generate_sequences", False),
        pytest.param("phase train begins", "update", True, marks=pytest.mark.nightly),
    ],
    ids=["rollout", "update"],
)
def test_a_stopped_worker_is_named_within_15_seconds_and_a_run_that_saves_goes_on(
    line: str, call: str, saves: bool, tiny_model: Path, tmp_path: Path
) -> None:
    overrides = ["rl_config.heartbeat_timeout_seconds=5", f"actor_config.load={tiny_model}"]
    if saves:
        overrides += ["megatron_training.save_interval=1", "megatron_training.train_iters=6"]
    program = start_program(tmp_path / "run", overrides)
    program.wait_for_steps(2)
    started, logs = program.descendants(), program.folder / "logs"
    workers = program.workers()
    stopped = stop_in(program, logs / "worker_1.log", line, workers)
    began = time.monotonic()

    found = rf"worker-1 \(rank 1, process {stopped.pid} on [^)]*\) did not run, stopped by a signal"
    while not re.search(found, program.text()):
        assert time.monotonic() - began < 15, program.text()
        time.sleep(0.1)
    assert gone(workers, timeout_seconds=15 - (time.monotonic() - began))
    for log in (logs / "worker_0.log", logs / "worker_1.log"):
        assert "(most recent call first)" in log.read_text()
        # Whoever waits for the stopped one waits in the same call.
        assert not saves or "in _update" in log.read_text()
    if saves:
        assert program.process.wait(timeout=120) == 0, program.text()
        (fault,) = map(json.loads, (program.folder / "faults.jsonl").read_text().splitlines())
        assert f"during: {call}" in json.dumps(fault)
        assert len(program.steps()) == 6
    else:
        assert program.process.wait(timeout=30) == 1
        assert f"during: {call}" in program.text()
        assert program.summary()["status"] == "failed"
    assert gone(started, timeout_seconds=10)


def stop_in(
    program: Program, log: Path, line: str, workers: list[psutil.Process]
) -> psutil.Process:
    """Stop the process of a log as soon as it writes a line; returns it, stopped."""
    with log.open() as file:
        file.seek(0, 2)
        while line not in file.readline():
            assert program.process.poll() is None, program.text()
            time.sleep(0.0005)
    (process,) = [
        each for each in workers if any(file.path == str(log) for file in each.open_files())
    ]
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    return process
