"""Each advice is given by a run made to have its fault; a healthy one has none (test_grpo_run)."""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from program import Program, start_program, workers_below

from mindrl.report.advice import RULES

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

REWARDS = Path(__file__).with_name("faulty_rewards.py")
SMALL = (
    *("megatron_training.global_batch_size=16", "rl_config.mini_batch_size=16"),
    *("rl_config.use_tensorboard=false", "rl_config.memory_timeline_steps=0"),
    *("rl_config.test_freq=0", "rl_config.report=false"),
)


def rewarded(*functions: str, weights: Sequence[float] = (1.0,)) -> tuple[str, str]:
    own = [name if name == "math_verify" else f"{REWARDS}:{name}" for name in functions]
    listed = f"rl_config.verifier_function=[{','.join(own)}]"
    return listed, f"rl_config.verifier_weight={[*weights]}"


def steps(count: int) -> str:
    return f"megatron_training.train_iters={count}"


# The model draws little but its three habits, so some faults want it hotter than it is trained.
FAULTS: Mapping[tuple[str, ...], Sequence[str]] = {
    # All answers are cut off, worth the same, and take longer to rate than to draw.
    ("no_signal", "slow_rewards", "truncation"): (
        *rewarded("slow_constant"),
        "generate_config.sampling_config.max_tokens=4",
        steps(6),
    ),
    ("length_hacking",): (
        *rewarded("math_verify", "pays_for_length", weights=(0.01, 1.0)),
        *("generate_config.sampling_config.temperature=1.5", "actor_config.lr=1e-3", steps(20)),
    ),
    ("entropy_collapse",): (
        *rewarded("pays_for_silence"),
        *("generate_config.sampling_config.temperature=1.5", "actor_config.lr=2e-3", steps(24)),
    ),
    # Answers get long, in a cache of 16 blocks of 128 tokens for 64 of them.
    ("small_kv_cache",): (
        *rewarded("pays_for_length"),
        "generate_config.sampling_config={temperature:2.0,max_tokens:200}",
        *("generate_config.kv_cache_mib=4", "generate_config.max_model_len=256"),
        *("megatron_training.seq_length=256", "actor_config.lr=1e-3", steps(15)),
    ),
    ("clipping", "staleness"): (
        *("rl_config.use_integrated_worker=false", "rl_config.step_order=one_step_off"),
        *("rl_config.actor_resource.num_npus=1", "rl_config.rollout_resource.num_npus=1"),
        *("actor_config.lr=6e-3", "rl_config.epochs=3", steps(8)),
    ),
    # The flatter the policy gets, the more of a bfloat16 engine's rounding shows.
    ("gap_grows", "slow_worker"): (
        *("generate_config.dtype=bfloat16", "rl_config.max_logprob_gap=100"),
        *("rl_config.entropy_coeff=1.0", "actor_config.lr=1e-3"),
        *("actor_config.lr_warmup_fraction=0.5", steps(20)),
    ),
}
"""By the rules that a run is to meet: what is wrong with it."""


def slowed(program: Program) -> None:
    """Let the run end while its second worker runs a sixth of the time."""
    program.wait_for_steps(1)
    worker = workers_below(program.process.pid)[1]
    while program.process.poll() is None:
        try:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.25)
        except psutil.NoSuchProcess:
            break
        finally:
            if worker.is_running():
                worker.send_signal(signal.SIGCONT)
        time.sleep(0.05)


def test_the_runs_have_a_fault_for_each_rule() -> None:
    assert {name for names in FAULTS for name in names} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rules", FAULTS, ids="-".join)
def test_a_run_with_a_fault_is_told_of_it(
    rules: tuple[str, ...], tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", *SMALL, *FAULTS[rules]]
    program = start_program(tmp_path / "run", asked)
    if "slow_worker" in rules:
        slowed(program)
    assert program.process.wait(timeout=600) == 0, program.text()
    told = {each["name"]: each["evidence"] for each in program.summary()["advice"]}
    assert {*rules} <= told.keys(), told
    assert all(evidence in " ".join(program.text().split()) for evidence in told.values())
