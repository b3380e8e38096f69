"""PPO in full colocation: three models and an engine take turns on devices that hold one."""

import json
from pathlib import Path

import pytest
from program import Program, start_program
from safetensors import safe_open

pytestmark = pytest.mark.e2e

MIB = 2**20
# All regions together need more than 2.2 times as much, the hungriest phase 12.2 MiB.
CAPACITY_MIB = 14
SMALL_DEVICE = (
    f"rl_config.device_memory_mib={CAPACITY_MIB}",
    "generate_config.kv_cache_mib=6",
    "generate_config.max_num_seqs=64",
)
NO_OFFLOAD = (
    "generate_config.offload_train_param=false",
    "generate_config.offload_train_grad=false",
    "generate_config.offload_train_optimizer=false",
    "critic_config.offload_train_param=false",
    "critic_config.offload_train_grad=false",
    "critic_config.offload_train_optimizer=false",
    "ref_config.offload_param=false",
)


def start(folder: Path, model: Path, *overrides: str) -> Program:
    chosen = [f"actor_config.load={model}", *SMALL_DEVICE, *overrides]
    return start_program(folder, chosen, program="train_ppo")


@pytest.fixture(scope="session")
def ppo_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A run of 4 steps of the shipped configuration, on devices that are too small for all."""
    return completed(tmp_path_factory.mktemp("ppo") / "run", tiny_model, steps=4)


def completed(folder: Path, model: Path, *, steps: int) -> Program:
    program = start(
        folder, model, f"megatron_training.train_iters={steps}", "rl_config.test_freq=0"
    )
    assert program.process.wait(timeout=600) == 0, program.text()
    return program


def moments(program: Program) -> list[dict]:
    lines = (program.folder / "memory.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_actor_reference_and_critic_share_two_workers_and_the_engine_has_the_actors_weights(
    ppo_run: Program,
) -> None:
    check_gap(ppo_run)
    assert all(step["update/grad_norm"] > 0 for step in ppo_run.steps())


def check_gap(program: Program) -> None:
    assert program.summary()["logprob_gap_max_mean"] < 1e-4


@pytest.mark.nightly
def test_sixteen_steps_raise_the_accuracy_by_03_and_halve_the_loss_of_the_critic(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = completed(tmp_path / "run", tiny_model, steps=16)
    check_gap(program)
    summary = program.summary()
    assert summary["accuracy_after"] >= summary["accuracy_before"] + 0.3
    check_critic(program)


def test_the_critic_learns_what_to_expect(ppo_run: Program) -> None:
    check_critic(ppo_run)


def check_critic(program: Program) -> None:
    first, *_, last = program.steps()
    # After four steps a fifth, where this was written.
    assert last["critic/value_loss"] < 0.5 * first["critic/value_loss"]
    assert last["value/explained_variance"] > first["value/explained_variance"]


def test_the_critic_is_exported_as_a_token_classifier(ppo_run: Program) -> None:
    folder = ppo_run.folder / "critic"
    described = json.loads((folder / "config.json").read_text())
    assert described["architectures"] == ["Qwen2ForTokenClassification"]
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert weights.get_slice("score.weight").get_shape() == [1, described["hidden_size"]]


def test_all_regions_together_need_more_than_twice_the_device_and_no_moment_more_than_it(
    ppo_run: Program,
) -> None:
    largest: dict[str, int] = {}
    for moment in moments(ppo_run):
        for region, nbytes in moment["region_bytes"].items():
            largest[region] = max(largest.get(region, 0), nbytes)
    assert sum(largest.values()) >= 2.2 * CAPACITY_MIB * MIB
    peaks = [step["memory/device_peak_bytes_max"] for step in ppo_run.steps()]
    # The hungriest phase is an update: weights, gradients, and half of an optimizer for each.
    needs = [
        moment["total_bytes"] for moment in moments(ppo_run) if moment["label"] == moment["phase"]
    ]
    assert max(peaks) <= 1.05 * max(needs) <= CAPACITY_MIB * MIB


def test_what_was_predicted_for_each_phase_is_what_was_measured(ppo_run: Program) -> None:
    phases = [moment for moment in moments(ppo_run) if moment["label"] == moment["phase"]]
    assert {moment["phase"] for moment in phases} == {
        "rollout",
        "reference",
        "critic_forward",
        "critic_train",
        "train",
    }
    for moment in phases:
        # The cache is made of whole blocks: what is over of the bytes that it was given is lost.
        slack = 64 * 1024 if moment["phase"] == "rollout" else 0
        assert moment["predicted_bytes"] - moment["total_bytes"] in range(slack + 1), moment
    assert "were predicted" not in ppo_run.text()
    assert (ppo_run.folder / "memory.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_without_offload_the_run_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = start(tmp_path / "run", tiny_model, *NO_OFFLOAD)
    assert program.process.wait(timeout=60) == 2
    assert "rl_config.check_memory=true: the run needs about" in program.text()
    assert "starting 2 worker(s)" not in program.text()


@pytest.mark.nightly
def test_without_offload_and_forced_the_device_is_out_of_memory(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = start(tmp_path / "run", tiny_model, *NO_OFFLOAD, "rl_config.check_memory=false")
    assert program.process.wait(timeout=180) == 1
    assert "out of device memory of 14.0 MiB: " in program.text()
    assert program.summary()["status"] == "failed"
