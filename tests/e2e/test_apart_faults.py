"""Whole runs on devices apart that lose processes of either side, and come to the same end."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from clusters import ray_cluster
from disturbances import Disturbance, environment, witnesses
from program import Program, start_program, workers_below
from step_orders import ASYNCHRONOUS, ONE_STEP_OFF, few_prompts
from test_ahead_runs import check, computed
from test_apart_run import has_open

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2400)]

STEPS = 6
KEYS = (
    *few_prompts(STEPS),
    "megatron_training.save_interval=1",
    "megatron_training.test_data_path=null",
    "actor_config.backend=megatron:t2",
    "generate_config.backend=vllm:d2",
    "rl_config.use_integrated_worker=false",
    "rl_config.max_restarts=100",
)
IN_TURNS = "rl_config.step_order=in_turns"
LINKS, TRAINER = "mindrl.workers.weight_links:WeightLinks", "worker 1"
"""Two ranks train, and each replica has one rank: worker 1 is one that trains."""


def loses_trainer(at: str, *, call: int, caller: str = TRAINER) -> Disturbance:
    return Disturbance(at=at, caller=caller, call=call, victim=TRAINER, kind="SIGKILL")


def ran(
    folder: Path,
    patch: pytest.MonkeyPatch,
    asked: Sequence[str],
    planned: Sequence[Disturbance] = (),
) -> Program:
    """Run on a cluster of four devices, however many cores there are, with all of it happening."""
    disturbed = folder.with_name(f"{folder.name}-disturbed")
    with patch.context() as inner:
        for name, value in environment(disturbed, planned).items():
            inner.setenv(name, value)
        with ray_cluster(4) as (_, joined):
            run = start_program(folder, [*KEYS, *asked], joined)
            assert run.process.wait(timeout=1200) == 0, run.text()
    assert len(witnesses(disturbed)) == len(planned), run.text()
    return run


@pytest.mark.parametrize(
    ("order", "staleness"), [(IN_TURNS, 0), (ONE_STEP_OFF, 1), (ASYNCHRONOUS, 2)]
)
def test_a_rank_that_trains_may_be_killed_in_a_link_a_sync_a_generation_and_an_update(
    order: str,
    staleness: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [f"actor_config.load={tiny_model}", order]
    asked += [f"rl_config.max_staleness={staleness}"] * (order == ASYNCHRONOUS)
    drawn = "generate" if order == IN_TURNS else "advance"
    planned = [
        loses_trainer(f"{LINKS}.open", call=2),
        loses_trainer(f"{LINKS}.send", call=3),
        loses_trainer(f"mindrl.rollout.vllm.engine:VllmEngine.{drawn}", call=2, caller="worker 0"),
        loses_trainer("mindrl.workers.training_worker:TrainingWorker.update", call=2),
    ]
    found = ran(tmp_path / "found", monkeypatch, asked, planned)
    check(found, staleness, STEPS)
    assert found.summary()["restarts"] == len(planned)
    if order != ASYNCHRONOUS:
        straight = ran(tmp_path / "straight", monkeypatch, asked)
        assert computed(found) == computed(straight)


LONG = 120
"""Steps: what is lost comes back in less time than they take."""


def disturb(run: Program, replica: int, by: signal.Signals) -> None:
    """Do something to a replica while it draws, by the log that it alone writes."""
    log = run.folder / "logs" / f"rollout_{replica}_0.log"
    (victim,) = (each for each in workers_below(os.getpid()) if has_open(each, log))
    while (
        not log.read_text()
        .rstrip()
        .endswith(("generate_sequences begins", "advance_sequences begins"))
    ):
        assert run.process.poll() is None, run.text()
    victim.send_signal(by)


@pytest.mark.parametrize(
    ("order", "staleness"), [(IN_TURNS, 0), (ONE_STEP_OFF, 1), (ASYNCHRONOUS, 2)]
)
def test_a_lost_replica_comes_back_beside_a_living_one_and_draws_alone_when_that_is_frozen(
    order: str, staleness: int, tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", *KEYS, order]
    asked += [f"megatron_training.{key}={LONG}" for key in ("train_iters", "keep_rollouts")]
    asked += [f"rl_config.max_staleness={staleness}"] * (order == ASYNCHRONOUS)
    asked += ["megatron_training.save_interval=0", "rl_config.heartbeat_timeout_seconds=10"]
    with ray_cluster(4) as (_, joined):
        run = start_program(tmp_path / "run", asked, joined)
        run.wait_for_steps(2)
        disturb(run, 1, signal.SIGKILL)
        run.wait_for_line("rollout replica 1 is running again")
        back = len(run.steps())
        run.wait_for_steps(back + 2)
        disturb(run, 0, signal.SIGSTOP)
        run.wait_for_line("rollout replica 0 is lost")
        run.wait_for_steps(back + 4)
        assert run.process.wait(timeout=900) == 0, run.text()
        assert "suspended by a signal" in run.text()
        check(run, staleness, LONG)
        # With weights of another version the engine's log-probs would be others.
        gaps = [line["logprob_gap/max"] for line in run.steps() if "logprob_gap/max" in line]
        assert all(gap < 1e-3 for gap in gaps)
        if order != ASYNCHRONOUS:
            quiet = start_program(tmp_path / "quiet", asked, joined)
            assert quiet.process.wait(timeout=900) == 0, quiet.text()
            assert computed(run) == computed(quiet)
