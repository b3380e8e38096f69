"""A run joins the cluster that RAY_ADDRESS names, and leaves it running."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import ray_cluster
from program import gone, kill_at_once, named, start_program, workers_below

Nodes = tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]


@pytest.fixture
def users_cluster() -> Iterator[tuple[Nodes, dict[str, str]]]:
    """Somebody else's two nodes with a CPU each, the head first, and the environment to join."""
    with ray_cluster(1, 1) as ((head, other), environment):
        yield (head, other), environment


@pytest.mark.e2e
@pytest.mark.nightly
def test_a_run_joins_a_cluster_and_leaves_it_as_it_was(
    users_cluster: tuple[Nodes, dict[str, str]], tiny_model: Path, tmp_path: Path
) -> None:
    (head, _), environment = users_cluster
    # Two workers, so one on each node.
    overrides = [
        f"actor_config.load={tiny_model}",
        "megatron_training.train_iters=1",
        "rl_config.actor_resource.npus_per_node=1",
    ]

    program = start_program(tmp_path / "run", overrides, environment)
    code = program.process.wait(timeout=300)

    assert code == 0, program.text()
    assert program.summary()["status"] == "completed"
    assert head.poll() is None
    assert named("raylet", head.pid)
    assert not workers_below(head.pid)


@pytest.mark.e2e
@pytest.mark.nightly
def test_workers_that_are_stopped_are_found_and_ended_on_both_nodes(
    users_cluster: tuple[Nodes, dict[str, str]], tiny_model: Path, tmp_path: Path
) -> None:
    _, environment = users_cluster
    overrides = [
        f"actor_config.load={tiny_model}",
        # A first update takes more than 5 on a machine that is busy with much else.
        "rl_config.heartbeat_timeout_seconds=10",
        "rl_config.actor_resource.npus_per_node=1",
    ]
    program = start_program(tmp_path / "run", overrides, environment)
    program.wait_for_steps(1)
    workers = workers_below(os.getpid())
    assert len({worker.ppid() for worker in workers}) == 2
    for worker in workers:
        worker.suspend()
    stopped = time.monotonic()

    assert program.process.wait(timeout=60) == 1
    assert time.monotonic() - stopped < 30
    assert gone(workers, timeout_seconds=1)
    named = r"worker-0 \(rank 0, [^)]*\), worker-1 \(rank 1, [^)]*\) was suspended by a signal"
    assert re.search(named, program.text()), program.text()
    for rank in (0, 1):
        log = program.folder / "logs" / f"worker_{rank}.log"
        assert "(most recent call first)" in log.read_text()


@pytest.mark.e2e
@pytest.mark.nightly
def test_a_run_that_loses_a_node_goes_on_with_the_devices_that_are_left(
    users_cluster: tuple[Nodes, dict[str, str]], tiny_model: Path, tmp_path: Path
) -> None:
    (_, second), environment = users_cluster
    overrides = [
        f"actor_config.load={tiny_model}",
        "megatron_training.train_iters=5",
        "megatron_training.save_interval=1",
        "rl_config.test_freq=0",
        "rl_config.actor_resource.npus_per_node=1",
        "rl_config.on_device_loss=shrink",
        "rl_config.device_wait_seconds=5",
    ]
    straight = start_program(tmp_path / "straight", overrides, environment)
    assert straight.process.wait(timeout=300) == 0, straight.text()

    program = start_program(tmp_path / "run", overrides, environment)
    program.wait_for_steps(3)
    assert len(workers_below(second.pid)) == 1
    kill_at_once(second)

    assert program.process.wait(timeout=400) == 0, program.text()
    shrunk = "shrink: the run continues on 1 device(s): training TP 1, DP 1"
    assert f"rl_config.on_device_loss={shrunk}" in program.text()
    assert program.summary()["restarts"] == 1
    assert [line["step"] for line in program.steps()] == [1, 2, 3, 4, 5]
    for ours, theirs in zip(program.steps(), straight.steps(), strict=True):
        for name in ("update/policy_loss", "update/grad_norm", "reward/mean"):
            # Another layout adds in another order.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
