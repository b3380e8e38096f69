"""Whole runs that replay the experts of engines on their own devices, in each order of steps."""

from pathlib import Path

import pytest
from program import start_program
from step_orders import APART, ASYNCHRONOUS, ONE_STEP_OFF, few_prompts, replicas, trained_batches

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

STEPS = 3
REWARD = """
def length(response: str, reference: str) -> float:
    return min(1.0, len(response) / 400)
"""
"""A reward that any random model earns, and unequally."""
ORDERS = {
    "in turns": ((), 0),
    "one step off": ((ONE_STEP_OFF,), 1),
    "asynchronous": ((ASYNCHRONOUS, "rl_config.max_staleness=2"), 2),
}
"""Overrides of each order, and the most updates by which a token may be older than its training."""


@pytest.mark.parametrize("order", ORDERS)
def test_every_sequence_of_engines_apart_is_trained_with_the_experts_that_sampled_it(
    order: str, tiny_data: Path, untaught_moe_model: Path, tmp_path: Path
) -> None:
    assert tiny_data.is_dir()
    more, staleness = ORDERS[order]
    (tmp_path / "reward.py").write_text(REWARD)
    overrides = [
        *("--config-name", "grpo_tiny_moe_cpu", f"actor_config.load={untaught_moe_model}"),
        *("actor_config.backend=megatron:d1", "generate_config.backend=vllm:d1"),
        *("actor_config.lr=1e-3", "actor_config.router_replay=R3"),
        f"rl_config.verifier_function=[{tmp_path}/reward.py:length]",
        "rl_config.verifier_weight=[1.0]",
        *(*few_prompts(STEPS), *APART, replicas(1), *more),
    ]
    run = start_program(tmp_path / "run", overrides)
    assert run.process.wait(timeout=600) == 0, run.text()
    trained_batches(run, STEPS, staleness)
    steps = run.steps()
    assert max(step["update/grad_norm"] for step in steps) > 1e-3
    assert [step["update/without_routes"] for step in steps] == [0.0] * STEPS
    # Float32 on both sides, and in the first step the same weights: only ties may differ.
    assert steps[0]["update/differing_routes"] < 1e-3
    if staleness:
        # Later ones were sampled by weights that chose other experts.
        assert steps[-1]["update/differing_routes"] > 1e-3
