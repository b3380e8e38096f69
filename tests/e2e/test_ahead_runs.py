"""Whole runs that draw ahead, on replicas that are killed, stopped and started again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import ray_cluster
from disturbances import Disturbance, environment, witnesses
from program import Program, kill_at_once, start_program
from step_orders import (
    APART,
    ASYNCHRONOUS,
    ONE_STEP_OFF,
    few_prompts,
    replicas,
    trained_batches,
)
from test_resume import outcome, resume
from timelines import check_step

# The short suite loses replicas in tests/distributed/test_links.py (their processes),
# tests/unit/cluster/test_apart_engines.py (what they were asked) and
# tests/unit/trainer/test_replicas_ahead.py (what was generated ahead); one step off is in
# test_filtered_runs.py.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS = 5
KEYS = (*few_prompts(STEPS), *APART)
WORKER = "mindrl.workers.rollout_worker:RolloutWorker"


def happens(method: str, kind: str, *, call: int) -> Disturbance:
    """Let something happen to a replica: it is worker 0 of its own world, as all are."""
    return Disturbance(
        at=f"{WORKER}.{method}", caller="worker 0", call=call, victim="worker 0", kind=kind
    )


def ran(
    folder: Path,
    model: Path,
    patch: pytest.MonkeyPatch,
    *overrides: str,
    planned: Sequence[Disturbance] = (),
) -> Program:
    """Run on a cluster of three devices, however many cores there are, to its end."""
    around = folder.with_name(f"{folder.name}-disturbed")
    with patch.context() as inner:
        for name, value in environment(around, planned).items():
            inner.setenv(name, value)
        with ray_cluster(3) as (_, joined):
            run = start_program(folder, [f"actor_config.load={model}", *KEYS, *overrides], joined)
            run.process.wait(timeout=600)
    assert len(witnesses(around)) == len(planned), run.text()
    return run


def check(run: Program, staleness: int, steps: int = STEPS) -> None:
    """Every response was trained on once, and no token of it was too old."""
    assert run.process.returncode == 0, run.text()
    trained_batches(run, steps, staleness)


def computed(run: Program) -> tuple[Any, ...]:
    """Return what a run has drawn and learned."""
    rollouts = {each.name: each.read_bytes() for each in (run.folder / "rollouts").iterdir()}
    rewards = [line["reward/mean"] for line in run.steps()]
    return rollouts, rewards, (run.folder / "model" / "model.safetensors").read_bytes()


def test_one_step_off_a_run_that_loses_one_of_two_replicas_computes_what_it_had_computed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = ran(tmp_path / "straight", tiny_model, monkeypatch, ONE_STEP_OFF, replicas(2))
    check(straight, staleness=1)
    timeline = check_step(straight, 2)
    assert timeline.named("driver", "wait for advance_sequences", "replica-1")
    assert [line["staleness/max"] for line in straight.steps()] == [0, *[1] * (STEPS - 1)]
    killed = [happens("advance_sequences", "SIGKILL", call=3)]
    run = ran(
        tmp_path / "killed", tiny_model, monkeypatch, ONE_STEP_OFF, replicas(2), planned=killed
    )
    check(run, staleness=1)
    assert "is lost" in run.text()
    assert sum(line["staleness/thrown_away_tokens"] for line in run.steps()) > 0
    assert computed(run) == computed(straight)


@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize(
    "fault",
    [
        happens("advance_sequences", "SIGKILL", call=7),
        happens("receive_weights", "SIGKILL", call=3),
        happens("join_link", "SIGKILL", call=1),
        happens("advance_sequences", "SIGSTOP", call=7),
        happens("receive_weights", "SIGSTOP", call=3),
    ],
    ids=["in a generation", "in a sync", "before its first weights", "frozen", "frozen in a sync"],
)
def test_asynchronous_no_token_is_too_old_whoever_is_lost_and_comes_back(
    fault: Disturbance,
    staleness: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one replica alone: the run waits until it is back, with the present weights."""
    run = ran(
        tmp_path / "run",
        tiny_model,
        monkeypatch,
        *(ASYNCHRONOUS, f"rl_config.max_staleness={staleness}"),
        *(replicas(1), "rl_config.heartbeat_timeout_seconds=20"),
        planned=[fault],
    )
    check(run, staleness)
    assert "is running again" in run.text()
    gaps = [line["logprob_gap/max"] for line in run.steps() if "logprob_gap/max" in line]
    assert all(gap < 1e-3 for gap in gaps)


@pytest.mark.parametrize("staleness", [None, 1, 2, 4])
def test_no_stored_token_is_older_than_it_may_be_whatever_the_seed(
    staleness: int | None, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is one step off; asynchronous there is one replica, which is the slower side."""
    limit = f"rl_config.max_staleness={staleness}"
    bound = [ONE_STEP_OFF] if staleness is None else [ASYNCHRONOUS, limit]
    oldest = set()
    for seed in (1, 2, 3):
        seeded = (*bound, f"megatron_training.seed={seed}", replicas(1))
        run = ran(tmp_path / str(seed), tiny_model, monkeypatch, *seeded)
        check(run, staleness or 1)
        oldest.add(max(line["staleness/max"] for line in run.steps()))
    # The bound is not held by drawing nothing ahead.
    assert max(oldest) >= 1


def test_where_all_replicas_are_lost_too_often_the_run_ends_and_says_so(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = [happens("advance_sequences", "SIGKILL", call=call) for call in (3, 3)]
    asked = (ONE_STEP_OFF, replicas(2), "rl_config.max_restarts=0")
    run = ran(tmp_path / "run", tiny_model, monkeypatch, *asked, planned=planned)
    assert run.process.returncode != 0
    assert "all 2 rollout replica(s) were lost" in run.text()


def test_one_step_off_a_run_that_was_killed_goes_on_to_the_same_bits(
    tiny_model: Path, tmp_path: Path
) -> None:
    saved = "megatron_training.save_interval=2"
    asked = [f"actor_config.load={tiny_model}", *KEYS, ONE_STEP_OFF, replicas(1), saved]
    straight = start_program(tmp_path / "straight", asked)
    assert straight.process.wait(timeout=600) == 0, straight.text()
    killed = start_program(tmp_path / "killed", asked)
    killed.wait_for_steps(3)
    kill_at_once(killed.process)
    resumed = resume(killed.folder, "train_grpo")
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    assert "continues after step 2" in resumed.text()
    assert outcome(resumed.folder) == outcome(straight.folder)


def test_asynchronous_a_run_that_was_killed_goes_on_with_what_was_under_way(
    tiny_model: Path, tmp_path: Path
) -> None:
    keys = (ASYNCHRONOUS, "rl_config.max_staleness=2", replicas(1))
    saved = "megatron_training.save_interval=2"
    asked = [f"actor_config.load={tiny_model}", *KEYS, *keys, saved]
    killed = start_program(tmp_path / "killed", asked)
    killed.wait_for_steps(3)
    kill_at_once(killed.process)
    resumed = resume(killed.folder, "train_grpo")
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    check(resumed, staleness=2)
