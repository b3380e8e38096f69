"""A worker that hangs is found in time in whatever it does, and all stacks are in the logs.

Each hang has a witness: the process was alone with it, at the named call.
"""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from disturbances import PHASES, WORKERS, Disturbance, disturbance, environment, witnesses
from program import gone, start_program

pytestmark = pytest.mark.e2e

SILENT_FOR_5_SECONDS = (
    "rl_config.heartbeat_timeout_seconds=5",
    # A micro-batch takes less, also where two cores are shared with others.
    "rl_config.n_samples_per_prompt=2",
)
SECONDS = 15
"""For who is silent for 5."""
WORKERS_CALL = [phase for phase, (caller, _) in PHASES.items() if caller == "worker"]
MAYBE_NOT_WRITTEN = [PHASES[phase][1] for phase in ("to rollout", "prefill", "write")]
"""Calls at which a worker on a busy machine may not have written its state of the step before."""
STOPPED = [disturbance(phase, WORKERS[1], "SIGSTOP") for phase in WORKERS_CALL]
SPINNING = [disturbance(phase, WORKERS[0], "spin") for phase in WORKERS_CALL]


@pytest.mark.nightly
def test_a_stopped_worker_ends_a_run_that_saves_nothing_by_name(
    tiny_model: Path, tmp_path: Path
) -> None:
    around = environment(tmp_path / "disturbed", [disturbance("decode", WORKERS[1], "SIGSTOP")])
    overrides = [f"actor_config.load={tiny_model}", *SILENT_FOR_5_SECONDS]
    program = start_program(tmp_path / "run", overrides, around)
    while not (happened := witnesses(tmp_path / "disturbed")):
        assert program.process.poll() is None, program.text()
        time.sleep(0.1)
    started, (stopped,) = program.descendants(), happened
    assert program.process.wait(timeout=60) == 1
    # Found, and everything taken down.
    assert time.time() - stopped["time"] < 2 * SECONDS
    assert gone(started, timeout_seconds=10)
    named = rf"worker-1 \(rank 1, process {stopped['pid']} on [^)]*\) was suspended by a signal"
    assert re.search(named, program.text()), program.text()
    assert "during: generate_sequences" in program.text()
    assert "in happen" in (program.folder / "logs/worker_1.log").read_text()
    assert program.summary()["status"] == "failed"


@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(
            [
                disturbance("decode", WORKERS[0], "spin"),
                disturbance("reduce", WORKERS[1], "SIGSTOP"),
            ],
            marks=pytest.mark.nightly,
            id="two",
        ),
        pytest.param(STOPPED, marks=[pytest.mark.faults, pytest.mark.timeout(3600)], id="stopped"),
        pytest.param(
            SPINNING, marks=[pytest.mark.faults, pytest.mark.timeout(3600)], id="spinning"
        ),
    ],
)
def test_workers_that_hang_in_any_phase_are_found_and_a_run_that_saves_goes_on(
    planned: Sequence[Disturbance], tiny_model: Path, tmp_path: Path
) -> None:
    around = environment(tmp_path / "disturbed", planned)
    overrides = [
        f"actor_config.load={tiny_model}",
        f"megatron_training.train_iters={2 + 3 * len(planned)}",
        "megatron_training.save_interval=1",
        *SILENT_FOR_5_SECONDS,
        "rl_config.init_kl_coef=0.001",
        "rl_config.test_freq=0",
        "rl_config.max_restarts=100",
    ]
    program = start_program(tmp_path / "run", overrides, around)
    assert program.process.wait(timeout=3500) == 0, program.text()
    happened = witnesses(tmp_path / "disturbed")
    lines = (program.folder / "faults.jsonl").read_text().splitlines()
    assert len(happened) == len(lines) == len(planned)
    for planted, hang, found in zip(planned, happened, map(json.loads, lines), strict=True):
        seen = "suspended by a signal" if planted.kind == "SIGSTOP" else "made no progress"
        assert seen in found["error"]
        assert f"process {hang['pid']}" in found["error"]
        took = found["time"] - hang["time"]
        print(f"| {planted.at} | {planted.kind} | {took:.1f} |")
        assert took < SECONDS, found
        # While the others waited for it, the step before was committed.
        behind = found["step"] - found["resumed_behind"]
        assert behind in ({1, 2} if planted.at in MAYBE_NOT_WRITTEN else {1})
    for log in (program.folder / "logs/worker_0.log", program.folder / "logs/worker_1.log"):
        # A thread of the worker's own, and others of its libraries; each time anew.
        assert log.read_text().count("in main_loop") == len(planned)
