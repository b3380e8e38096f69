"""Whole programs on a machine with two simulated NPUs: the launch script, Ray, the doctor."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from program import start_program
from simulated import HERE, ROOT, Machine, around

pytestmark = [pytest.mark.npu_simulated, pytest.mark.timeout(900)]

TINY = {
    "actor_config.load": ".cache/tiny/model",
    "actor_config.tensor_model_parallel_size": 2,
    "megatron_training.data_path": ".cache/tiny/data/train.jsonl",
    "megatron_training.test_data_path": "null",
    "megatron_training.train_iters": 2,
    "megatron_training.global_batch_size": 8,
    "megatron_training.seq_length": 64,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.actor_resource.npus_per_node": 2,
    "rl_config.device_memory_mib": 2048,
    "rl_config.mini_batch_size": 8,
    "rl_config.n_samples_per_prompt": 4,
    "rl_config.max_prompt_length": 16,
    "rl_config.test_freq": 0,
    "generate_config.infer_tensor_parallel_size": 1,
    "generate_config.kv_cache_mib": 32,
    "generate_config.max_model_len": 64,
    "generate_config.sampling_config.max_tokens": 24,
}
"""The run of Qwen2.5-7B, with the quickstart's model and data on two devices."""


@pytest.fixture
def node(packages: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a machine with two devices and the vendor's tool."""
    with around(Machine(devices=2)) as found:
        path = os.pathsep.join([str(HERE / "bin"), os.environ["PATH"]])
        folder = {"DEVICE_DIR": found["MINDRL_DEVICE_FOLDER"], "PYTHON": sys.executable}
        yield {**os.environ, **packages, **found, **folder, "PATH": path}


def run(*command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, of which nothing is left then."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=800)
    except BaseException:
        process.terminate()
        process.wait(timeout=60)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "update/grad_norm" in line]


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny_model")
def test_the_launch_script_trains_the_tiny_model_over_ray(
    node: dict[str, str], tmp_path: Path
) -> None:
    overrides = [f"{key}={value}" for key, value in TINY.items()]
    script = ["bash", "scripts/train_grpo_qwen25_7b.sh", *overrides]
    done = run(*script, f"hydra.run.dir={tmp_path / 'run'}", env=node)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    assert "preflight: ready, 2 NPU(s) on node 0 of 1" in done.stderr
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 2
    # Of two softmaxes in bfloat16.
    assert all(step["logprob_gap/mean"] < 0.05 for step in steps)


def test_the_doctor_counts_the_devices_and_names_what_is_not_as_pinned(
    node: dict[str, str],
) -> None:
    done = run(sys.executable, "cli/doctor.py", "--json", env=node)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["device"]) == (1, "npu")
    said = {each["what"]: (each["verdict"], each["found"]) for each in answer["observations"]}
    assert said["devices"] == ("ok", "2 x 910B3")
    assert said["device memory"] == ("ok", "at least 60.7 GiB free on each")
    assert said["torch-npu"] == ("problem", "2.13.0, requires ==2.10.0.post4")
    assert said["vllm-ascend"][0] == "ok"


@pytest.mark.nightly
def test_the_self_test_passes_on_two_devices(node: dict[str, str]) -> None:
    done = run(sys.executable, "cli/doctor.py", "--self-test", "--json", env=node)
    answer = json.loads(done.stdout)
    assert (answer["device"], answer["devices"], answer["failed"]) == ("npu", 2, 0), done.stderr
    figures = {each["what"]: each["figures"] for each in answer["trials"]}
    assert len(figures) == 7
    # In bfloat16, half of what the same weights are on the CPU.
    assert figures["reshard"]["received_bytes"] == 5_246_976
    # Of both in bfloat16.
    assert figures["log-prob gap"]["mean_gap_nats"] < 0.05


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("harm", "said"),
    [(signal.SIGKILL, "died"), (signal.SIGSTOP, "was suspended by a signal")],
)
def test_a_worker_that_dies_or_stands_still_is_found_and_the_run_goes_on(
    harm: signal.Signals, said: str, node: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    steps = {
        "rl_config.max_restarts": 1,
        "rl_config.heartbeat_timeout_seconds": 20,
        "megatron_training.save_interval": 1,
        "megatron_training.train_iters": 3,
        "actor_config.load": tiny_model,
    }
    overrides = [f"{key}={value}" for key, value in (TINY | steps).items()]
    named = ["--config-name", "grpo_qwen25_7b", *overrides]
    program = start_program(tmp_path / "run", named, node)
    program.wait_for_steps(1, timeout_seconds=600)
    program.workers()[1].send_signal(harm)
    assert program.process.wait(timeout=800) == 0, program.text()
    (fault,) = map(json.loads, (program.folder / "faults.jsonl").read_text().splitlines())
    assert said in fault["error"]
    assert [step["step"] for step in program.steps()][-1] == 3
