"""Runs whose rollout has devices of its own: what they compute, and what they survive."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from clusters import ray_cluster
from program import Program, one_core, start_program, workers_below
from safetensors.torch import load_file
from timelines import check_step

pytestmark = pytest.mark.e2e
SHORT = (
    "megatron_training.train_iters=2",
    "megatron_training.global_batch_size=8",
    "rl_config.mini_batch_size=8",
    "rl_config.use_tensorboard=false",
    "rl_config.memory_timeline_steps=0",
)
TIMED = (
    *("seconds/", "bytes/", "memory/", "throughput/", "idle/"),
    # Of the replicas that lived.
    *("staleness/thrown_away_tokens", "logprob_gap/probe_tokens"),
)


@pytest.fixture(scope="module")
def four_devices() -> Iterator[dict[str, str]]:
    """The environment to join a cluster of four devices, however many cores there are."""
    with ray_cluster(4) as (_, environment):
        yield environment


def run(folder: Path, model: Path, environment: dict[str, str], *overrides: str) -> Program:
    with one_core():
        return start_program(
            folder, [f"actor_config.load={model}", *SHORT, *overrides], environment
        )


def finished(program: Program) -> Program:
    assert program.process.wait(timeout=600) == 0, program.text()
    assert program.summary()["status"] == "completed"
    return program


def numbers(program: Program) -> list[dict[str, Any]]:
    """Return what was computed in each step, without what it cost."""
    return [
        {name: value for name, value in step.items() if not name.startswith(TIMED)}
        for step in program.steps()
    ]


def answers(program: Program) -> list[Any]:
    """Return the held-out answers of the last evaluation, in any order."""
    found = program.evaluations(2)
    return sorted((each["prompt"], each["response"]) for each in found)


def weights(program: Program) -> dict[str, torch.Tensor]:
    return load_file(program.folder / "model" / "model.safetensors")


def assert_equal(first: Program, second: Program) -> None:
    assert numbers(first) == numbers(second)
    assert answers(first) == answers(second)
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


APART = "rl_config.use_integrated_worker=false"
ALONE = "rl_config.actor_resource.num_npus=1"
PAIR = "actor_config.backend=megatron:t2"
CASES = [
    # (overrides of both runs, the workers that train, those that generate)
    ((ALONE, "generate_config.backend=vllm:d1"), ("worker-0",), ("rollout_0-0",)),
    (
        (PAIR, "generate_config.backend=vllm:d2"),
        ("worker-0", "worker-1"),
        ("rollout_0-0", "rollout_1-0"),
    ),
    # One replica of two stages.
    (
        (PAIR, "generate_config.backend=vllm:p2"),
        ("worker-0", "worker-1"),
        ("rollout_0-0", "rollout_0-1"),
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("layouts", "trainers", "engines"), CASES)
def test_some_that_train_and_others_that_generate_compute_what_those_that_do_both_compute(
    layouts: tuple[str, ...],
    trainers: tuple[str, ...],
    engines: tuple[str, ...],
    tiny_model: Path,
    four_devices: dict[str, str],
    tmp_path: Path,
) -> None:
    shared = finished(run(tmp_path / "shared", tiny_model, four_devices, *layouts))
    apart = finished(run(tmp_path / "apart", tiny_model, four_devices, *layouts, APART))
    assert_equal(apart, shared)
    assert check_step(apart, 2).processes() == ["driver", *trainers, *engines]
    for step in apart.steps()[1:]:
        # Each replica gets every weight once, and no byte more.
        assert step["bytes/reshard_sent"] == step["bytes/reshard_received"]
        assert step["bytes/reshard_received"] == step["bytes/reshard_needed"]
        assert step["seconds/receive_weights"] < 5


@pytest.mark.nightly
def test_a_pipeline_that_trains_fills_an_engine_of_two_devices(
    tiny_model: Path, four_devices: dict[str, str], tmp_path: Path
) -> None:
    layouts = ("actor_config.backend=megatron:p2", "generate_config.backend=vllm:t2")
    shared = finished(run(tmp_path / "shared", tiny_model, four_devices, *layouts))
    first = "rl_config.rollout_resource.first=true"
    apart = finished(run(tmp_path / "apart", tiny_model, four_devices, *layouts, APART, first))
    assert_equal(apart, shared)


def kill_while_generating(program: Program, replica: int, call: str = "generate_sequences") -> None:
    """Kill the first worker of a replica in a call of a rollout after the first step."""
    program.wait_for_steps(1)
    log = program.folder / "logs" / f"rollout_{replica}_0.log"
    (victim,) = (each for each in workers_below(os.getpid()) if has_open(each, log))
    while not log.read_text().rstrip().endswith(f"{call} begins"):
        assert program.process.poll() is None, program.text()
    victim.send_signal(signal.SIGKILL)


def has_open(process: psutil.Process, log: Path) -> bool:
    return log.resolve() in {
        Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in (1, 2)
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("more", "call"),
    [
        pytest.param((), "generate_sequences", id="whole"),
        # Complete groups are scored while others are generated.
        pytest.param(
            ("rl_config.blocking=false", "rl_config.rollout_round_steps=4"),
            "advance_sequences",
            id="rounds",
        ),
    ],
)
def test_a_replica_that_is_killed_while_it_generates_loses_nothing(
    more: tuple[str, ...],
    call: str,
    tiny_model: Path,
    four_devices: dict[str, str],
    tmp_path: Path,
) -> None:
    layouts = ("actor_config.backend=megatron:t2", "generate_config.backend=vllm:d2", APART, *more)
    steps = "megatron_training.train_iters=12"
    quiet = finished(run(tmp_path / "quiet", tiny_model, four_devices, *layouts, steps))
    killed = run(tmp_path / "killed", tiny_model, four_devices, *layouts, steps)
    kill_while_generating(killed, 1, call)
    finished(killed)
    assert numbers(killed) == numbers(quiet)
    ours, theirs = weights(killed), weights(quiet)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "rollout replica 1 is lost: rollout_1-0 (rank 0" in killed.text()


@pytest.mark.nightly
def test_the_only_replica_is_waited_for_and_has_the_present_weights_before_its_first_prompt(
    tiny_model: Path, four_devices: dict[str, str], tmp_path: Path
) -> None:
    one = "rl_config.actor_resource.num_npus=1"
    layouts = (one, "generate_config.backend=vllm:d1", "megatron_training.train_iters=12", APART)
    quiet = finished(run(tmp_path / "quiet", tiny_model, four_devices, *layouts))
    killed = run(tmp_path / "killed", tiny_model, four_devices, *layouts)
    kill_while_generating(killed, replica=0)
    finished(killed)
    assert "rollout replica 0 is running again" in killed.text()
    assert numbers(killed) == numbers(quiet)
    ours, theirs = weights(killed), weights(quiet)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.nightly
def test_a_checkpoint_of_shared_devices_is_gone_on_with_apart_and_back_to_the_same_bits(
    tiny_model: Path, four_devices: dict[str, str], tmp_path: Path
) -> None:
    layouts = ("actor_config.backend=megatron:t2", "generate_config.backend=vllm:d2")
    kept = ("save_interval=2", "keep_every=2", "train_iters=6", "test_data_path=null")
    asked = [*layouts, "rl_config.test_freq=0", *(f"megatron_training.{each}" for each in kept)]

    def behind(program: Program, step: int) -> str:
        checkpoint = program.folder / "checkpoints" / f"step-{step:08}"
        return f"megatron_training.resume={checkpoint}"

    shared = finished(run(tmp_path / "shared", tiny_model, four_devices, *asked))
    apart = run(tmp_path / "apart", tiny_model, four_devices, *asked, APART, behind(shared, 2))
    back = run(tmp_path / "back", tiny_model, four_devices, *asked, behind(finished(apart), 4))
    for found, step in ((apart, 2), (finished(back), 4)):
        assert [line["step"] for line in found.steps()] == [*range(step + 1, 7)]
        assert numbers(found) == numbers(shared)[step:]
        ours, theirs = weights(found), weights(shared)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
