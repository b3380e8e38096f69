"""Experts in the real program: whole ones in training, halves of each in the rollout engine."""

from pathlib import Path

import psutil
import pytest
from program import Program, fresh_answers, start_program

pytestmark = pytest.mark.e2e

# Any random model earns it, and unequally, so that every step has a gradient.
REWARD = """
import subprocess

def length(response: str, reference: str) -> float:
    return min(1.0, len(response) / 400)

def failing(response: str, reference: str) -> float:
    if response and int(reference) % 4 == 0:
        subprocess.Popen(["sleep", "86421"], start_new_session=True)
        raise ValueError(reference)
    return 0.0
"""
SLEEP = ["sleep", "86421"]


@pytest.fixture(scope="module")
def moe_run(
    tiny_data: Path, untaught_moe_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    """Three steps of the quickstart for experts, from random weights at a high learning rate."""
    assert tiny_data.is_dir()
    scratch = tmp_path_factory.mktemp("moe_run")
    (scratch / "reward.py").write_text(REWARD)
    overrides = [
        *("--config-name", "grpo_tiny_moe_cpu"),
        f"actor_config.load={untaught_moe_model}",
        *("actor_config.lr=1e-3", "actor_config.lr_decay_style=constant"),
        *("megatron_training.train_iters=3", "actor_config.router_replay=R3"),
        f"rl_config.verifier_function=[{scratch}/reward.py:length,{scratch}/reward.py:failing]",
        "rl_config.verifier_weight=[1.0,0.0]",
        *("rl_config.clip_ratio_high=0.28", "rl_config.overlong_buffer_enable=true"),
        *("rl_config.overlong_buffer=8", "rl_config.overlong_buffer_penalty_factor=0.5"),
    ]
    program = start_program(scratch / "run", overrides)
    assert program.process.wait(timeout=300) == 0, program.text()
    return program


def test_the_experts_arrive_in_every_step_that_changed_them(moe_run: Program) -> None:
    steps = moe_run.steps()
    assert len(steps) == 3
    assert min(step["update/grad_norm"] for step in steps) > 1e-3
    # Equal to the bit would mean that both numbers came from the same place.
    assert 0 < max(step["logprob_gap/mean"] for step in steps) < 1e-4


def test_every_sequence_is_trained_with_the_experts_that_sampled_it(moe_run: Program) -> None:
    for step in moe_run.steps():
        assert step["update/without_routes"] == 0
        # Float32 on both sides: only ties may differ.
        assert step["update/differing_routes"] < 1e-3


def test_a_penalty_for_length_teaches_random_weights_to_end_their_responses(
    moe_run: Program,
) -> None:
    """From -0.45 of at most -0.5 to -0.002, where this was written."""
    costs = [step["reward/overlong"] for step in moe_run.steps()]
    assert -0.5 <= costs[0] < -0.25
    assert costs[0] / 2 < costs[-1] <= 0
    for step in moe_run.steps():
        earned = step["reward/length"]
        assert step["reward/mean"] == pytest.approx(earned + step["reward/overlong"])


def test_failing_rewards_are_told_once_and_counted_and_what_they_started_ends_with_the_run(
    moe_run: Program,
) -> None:
    ((function, counts),) = moe_run.summary()["reward_failures"].items()
    in_steps = sum(step["reward/errors"] for step in moe_run.steps())
    # The evaluations before and behind the steps count too.
    assert counts["exception"] > in_steps > 0
    assert moe_run.text().count(f"{function} did not score ") == 1
    log = (moe_run.folder / "logs/driver.log").read_text()
    assert log.count("    raise ValueError(reference)\n") == 1
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == SLEEP]


def test_two_workers_receive_the_half_of_every_expert_that_the_other_trains(
    moe_run: Program,
) -> None:
    # Each worker trains 4 of the 8 experts of each of 4 layers: 3 matrices of 128 x 128 floats.
    experts_of_a_worker = 4 * 4 * 3 * 128 * 128 * 4
    first, *steps = moe_run.steps()
    # The first step finds the engine awake behind the evaluation, with these very weights.
    assert "bytes/reshard_received" not in first
    assert steps
    for step in steps:
        assert step["bytes/reshard_received"] == 2 * experts_of_a_worker // 2 == 3_145_728
        assert step["bytes/reshard_needed"] == 3_145_728


@pytest.mark.nightly
def test_the_exported_experts_answer_alike_in_vllm_and_transformers(moe_run: Program) -> None:
    expected = [row["response"] for row in moe_run.evaluations(3)]
    answers = fresh_answers(moe_run.summary()["model"], count=8)
    assert answers["vllm"] == expected
    assert answers["transformers"] == expected[:8]
