"""Whole runs with dynamic sampling in each order of generation and training."""

from pathlib import Path

import pytest
from program import Program, kill_at_once, start_program
from step_orders import (
    APART,
    ASYNCHRONOUS,
    ONE_STEP_OFF,
    PROMPTS,
    few_prompts,
    replicas,
    trained_batches,
)
from test_resume import outcome, resume

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

STEPS = 4
KEYS = (*few_prompts(STEPS), "rl_config.filter_groups_enable=true")
PARTIAL = ("rl_config.partial_rollout=true", "rl_config.max_staleness=1")
ONE_OFF = (*APART, replicas(1), ONE_STEP_OFF)
AHEAD = (*APART, replicas(1), ASYNCHRONOUS, "rl_config.max_staleness=2")


def check(run: Program, staleness: int) -> None:
    """Each prompt was used once, its responses differ in their rewards, and no token is too old."""
    assert run.process.wait(timeout=600) == 0, run.text()
    for batch in trained_batches(run, STEPS, staleness):
        rewards = batch.rewarded.scores.rewards
        samples = len(rewards) // PROMPTS
        groups = [rewards[at : at + samples] for at in range(0, len(rewards), samples)]
        assert all(len({*group}) > 1 for group in groups)
    steps = run.steps()
    assert [line["advantage/zero_fraction"] for line in steps] == [0.0] * STEPS
    assert sum(line["groups/without_signal"] for line in steps) > 0
    assert max(line["staleness/max"] for line in steps) <= staleness


@pytest.mark.nightly
def test_one_step_off_all_groups_have_a_signal_and_none_is_too_old(
    tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", *KEYS, *ONE_OFF]
    run = start_program(tmp_path / "run", asked)
    check(run, staleness=1)
    # Groups that were started ahead are one step old, those that replaced others are not.
    assert any(0 < line["staleness/stale_tokens"] < 1 for line in run.steps())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("order", "staleness"),
    [(PARTIAL, 1), (ONE_OFF, 1), (AHEAD, 2)],
    ids=["partial", "one step off", "asynchronous"],
)
def test_a_filtered_run_that_was_killed_continues_with_its_open_groups(
    order: tuple[str, ...], staleness: int, tiny_model: Path, tmp_path: Path
) -> None:
    """To the same bits, unless the result depends on the speed of the replica."""
    saved = "megatron_training.save_interval=2"
    asked = [f"actor_config.load={tiny_model}", *KEYS, *order, saved]
    killed = start_program(tmp_path / "killed", asked)
    killed.wait_for_steps(3)
    kill_at_once(killed.process)
    resumed = resume(killed.folder, "train_grpo")
    check(resumed, staleness)
    if order is not AHEAD:
        straight = start_program(tmp_path / "straight", asked)
        check(straight, staleness)
        assert outcome(resumed.folder) == outcome(straight.folder)
