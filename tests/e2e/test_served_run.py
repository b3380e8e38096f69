"""Runs whose engines are servers that somebody else has started."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from clusters import ray_cluster
from program import CHECKOUT, Program, kill_all, start_program

from mindrl.platform.rendezvous import listen

# Four starts of a server.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SHORT = (
    "megatron_training.train_iters=4",
    "megatron_training.global_batch_size=8",
    "rl_config.mini_batch_size=8",
    "rl_config.use_tensorboard=false",
    "rl_config.actor_resource.num_npus=1",
    "rl_config.max_restarts=2",
    "actor_config.tensor_model_parallel_size=1",
    "generate_config.infer_tensor_parallel_size=1",
)


@contextmanager
def server(overrides: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the server of a configuration, and end it."""
    command = [sys.executable, "cli/serve.py", "--config-name", "grpo_tiny_cpu", *overrides]
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=os.environ | {"VLLM_LOGGING_LEVEL": "WARNING"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        kill(started)


def kill(started: "subprocess.Popen[bytes]") -> None:
    """Kill the server below its guard, which ends the processes of its engine."""
    if started.poll() is not None:
        return
    guard = psutil.Process(started.pid)
    below = guard.children(recursive=True)
    kill_all(guard.children())
    started.wait(timeout=60)
    assert not psutil.wait_procs(below, timeout=20)[1], "something of the engine lives on"


def free_addresses(count: int) -> list[str]:
    """Return addresses at which nothing listens."""
    found = []
    for _ in range(count):
        with listen("127.0.0.1") as free:
            found.append(f"http://127.0.0.1:{free.getsockname()[1]}")
    return found


def served_by(tiny_model: Path, tmp_path: Path, servers: int, where: str) -> tuple[str, ...]:
    """Return the configuration of a run with up to so many servers of one rank."""
    (tmp_path / "token").write_text("of-this-test", "utf-8")
    return (
        f"actor_config.load={tiny_model}",
        *SHORT,
        "rl_config.use_integrated_worker=false",
        f"rl_config.rollout_resource.num_npus={servers}",
        f"generate_config.{where}",
        f"generate_config.server_token_file={tmp_path / 'token'}",
    )


def require_the_weights_of_the_trainer(run: Program, steps: int) -> None:
    """Refuse a run whose servers drew with other weights than its trainer had."""
    assert run.summary()["status"] == "completed"
    found = run.steps()
    assert [step["step"] for step in found] == [*range(1, steps + 1)]
    for step in found:
        assert step["logprob_gap/mean"] < 1e-4


def test_a_run_trains_with_the_answers_of_a_server_and_goes_on_when_that_begins_anew(
    tiny_model: Path, tmp_path: Path
) -> None:
    served = served_by(tiny_model, tmp_path, 1, f"servers={free_addresses(1)}")
    with ray_cluster(1) as (_, environment):
        with server(served, tmp_path / "server.txt") as first:
            run = start_program(tmp_path / "run", served, environment)
            run.wait_for_steps(1)
            kill(first)
        with server(served, tmp_path / "server.txt"):
            assert run.process.wait(timeout=600) == 0, run.text()
    assert "rollout replica 0 is lost" in run.text()
    require_the_weights_of_the_trainer(run, 4)


@pytest.mark.parametrize(
    "router",
    [
        None,
        pytest.param(
            "vllm-router",
            marks=pytest.mark.skipif(
                find_spec("vllm_router") is None, reason="the extra `router` is not installed"
            ),
        ),
    ],
)
def test_a_server_joins_an_asynchronous_run_and_the_one_of_before_leaves(
    router: str | None, tiny_model: Path, tmp_path: Path
) -> None:
    listed, (first, second) = tmp_path / "servers.txt", free_addresses(2)
    served = (
        *served_by(tiny_model, tmp_path, 2, f"servers_file={listed}"),
        "megatron_training.train_iters=24",
        "rl_config.step_order=asynchronous",
        "rl_config.max_staleness=1",
        f"generate_config.router={router or 'null'}",
    )
    listed.write_text(f"{first}\n", "utf-8")
    with (
        ray_cluster(1) as (_, environment),
        server((*served, "--address", first), tmp_path / "first.txt") as leaving,
    ):
        run = start_program(tmp_path / "run", served, environment)
        run.wait_for_steps(1)
        with server((*served, "--address", second), tmp_path / "second.txt"):
            listed.write_text(f"{first}\n{second}\n", "utf-8")
            run.wait_for_line("rollout replica 1 is running")
            run.wait_for_steps(len(run.steps()) + 2)
            listed.write_text(f"{second}\n", "utf-8")
            run.wait_for_line("rollout replica 0 has left")
            # Nothing of it is needed any more.
            kill(leaving)
            assert run.process.wait(timeout=600) == 0, run.text()
    assert " is lost" not in run.text()
    require_the_weights_of_the_trainer(run, 24)


@pytest.mark.skipif(find_spec("vllm_router") is None, reason="the extra `router` is not installed")
def test_a_router_before_two_servers_goes_on_with_one_when_the_other_is_killed(
    tiny_model: Path, tmp_path: Path
) -> None:
    where = f"servers={free_addresses(2)}"
    served = (*served_by(tiny_model, tmp_path, 2, where), "generate_config.router=vllm-router")
    with (
        ray_cluster(1) as (_, environment),
        server(served, tmp_path / "first.txt") as first,
        server((*served, "--replica", "1"), tmp_path / "second.txt"),
    ):
        run = start_program(tmp_path / "run", served, environment)
        run.wait_for_steps(1)
        kill(first)
        assert run.process.wait(timeout=600) == 0, run.text()
    assert "rollout replica 0 is lost" in run.text()
    require_the_weights_of_the_trainer(run, 4)
    # It ended with the run.
    assert not [each for each in psutil.process_iter() if is_router_of(each, tmp_path)]


def is_router_of(process: psutil.Process, folder: Path) -> bool:
    """Say whether a process is a router whose run is in a folder."""
    try:
        return any(each.path.startswith(str(folder)) for each in process.open_files())
    except psutil.Error:
        return False
