"""Ray's own processes are killed or stopped: the run says so, begins again, or ends in words."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from clusters import ray_cluster
from program import Program, gone, named, start_program
from test_resume import outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS = 24
"""A run lasts longer than a stopped process may be silent."""
STOPPED = "was suspended by a signal for 10 s (rl_config.heartbeat_timeout_seconds)"


def overrides(model: Path, *more: str) -> list[str]:
    return [
        f"actor_config.load={model}",
        f"megatron_training.train_iters={STEPS}",
        "megatron_training.save_interval=1",
        "megatron_training.keep_rollouts=3",
        "rl_config.test_freq=0",
        *more,
    ]


@pytest.fixture(scope="module")
def straight(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return an undisturbed run."""
    program = start_program(tmp_path_factory.mktemp("straight") / "run", overrides(tiny_model))
    assert program.process.wait(timeout=600) == 0, program.text()
    return program


def hit(program: Program, name: str, kind: signal.Signals) -> psutil.Process:
    """Send a signal to a process of Ray's, after two steps."""
    program.wait_for_steps(2)
    (found,) = named(name, program.process.pid)
    found.send_signal(kind)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("raylet", signal.SIGKILL, "was killed by SIGKILL"),
        ("raylet", signal.SIGSTOP, STOPPED),
        ("gcs_server", signal.SIGKILL, "was killed by SIGKILL"),
        ("gcs_server", signal.SIGSTOP, STOPPED),
    ],
)
def test_a_run_goes_on_with_a_ray_of_its_own_that_is_started_again(
    name: str,
    kind: signal.Signals,
    said: str,
    straight: Program,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    asked = overrides(tiny_model, "rl_config.heartbeat_timeout_seconds=10")
    program = start_program(tmp_path / "run", asked)
    lost, began = hit(program, name, kind), time.time()
    before = program.descendants()
    assert program.process.wait(timeout=600) == 0, program.text()
    (fault,) = map(json.loads, (program.folder / "faults.jsonl").read_text().splitlines())
    assert f"Ray's process {name} ({lost.pid} on this machine) {said}" in fault["error"]
    assert fault["time"] - began < 30
    assert gone(before, timeout_seconds=10)
    assert outcome(program.folder) == outcome(straight.folder)


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_signal_ends_a_run_whose_ray_is_stopped(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    program = start_program(tmp_path / "run", overrides(tiny_model, "rl_config.grace_seconds=60"))
    hit(program, name, signal.SIGSTOP)
    before = program.descendants()
    time.sleep(2)
    program.process.terminate()
    assert program.process.wait(timeout=60) == 130, program.text()
    assert program.summary()["status"] == "interrupted"
    assert "error: stopped by SIGTERM" in program.text()
    assert gone(before, timeout_seconds=10)


def test_without_checkpoints_a_killed_raylet_ends_the_run_in_words(
    tiny_model: Path, tmp_path: Path
) -> None:
    asked = overrides(tiny_model, "megatron_training.save_interval=0")
    program = start_program(tmp_path / "run", asked)
    lost = hit(program, "raylet", signal.SIGKILL)
    assert program.process.wait(timeout=60) == 1, program.text()
    assert f"error: Ray's process raylet ({lost.pid} on this machine) was killed" in program.text()
    assert "Traceback" not in program.text()
    assert program.summary()["status"] == "failed"


def test_a_joined_cluster_that_loses_its_head_ends_the_run_in_words_and_is_left_alone(
    tiny_model: Path, tmp_path: Path
) -> None:
    with ray_cluster(1, 1) as ((head, other), environment):
        asked = overrides(tiny_model, "rl_config.actor_resource.npus_per_node=1")
        program = start_program(tmp_path / "run", asked, environment)
        program.wait_for_steps(2)
        (server,) = named("gcs_server", head.pid)
        server.kill()
        assert program.process.wait(timeout=90) == 1, program.text()
        assert "error: " in program.text()
        assert "lost the cluster that this run has joined: " in program.text()
        assert program.summary()["status"] == "failed"
        assert other.poll() is None


def test_sigterm_while_ray_starts_ends_the_run_with_a_summary(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = start_program(tmp_path / "run", overrides(tiny_model))
    while not named("gcs_server", program.process.pid):
        assert program.process.poll() is None, program.text()
        time.sleep(0.01)
    before = program.descendants()
    program.process.terminate()
    assert program.process.wait(timeout=60) == 130, program.text()
    assert program.summary()["status"] == "interrupted"
    assert gone(before, timeout_seconds=10)
