"""Whole runs on devices apart that lose processes of either side, and come to the same end."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from clusters import ray_cluster
from disturbances import Disturbance, environment, witnesses
from program import Program, start_program
from test_ahead_runs import ONE_OFF, PROMPTS, check, computed

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2400)]

STEPS = 6
KEYS = (
    f"megatron_training.train_iters={STEPS}",
    f"megatron_training.keep_rollouts={STEPS}",
    f"megatron_training.global_batch_size={PROMPTS}",
    f"rl_config.mini_batch_size={PROMPTS}",
    "megatron_training.save_interval=1",
    "megatron_training.test_data_path=null",
    "actor_config.backend=megatron:t2",
    "generate_config.backend=vllm:d2",
    "rl_config.use_integrated_worker=false",
    "rl_config.rollout_round_steps=4",
    "rl_config.max_restarts=100",
    *("rl_config.test_freq=0", "rl_config.use_tensorboard=false"),
    "rl_config.memory_timeline_steps=0",
)
IN_TURNS = "rl_config.step_order=in_turns"
LINKS, TRAINER = "mindrl.workers.weight_links:WeightLinks", "worker 1"
"""Two ranks train, and each replica has one rank: worker 1 is one that trains."""


def loses_trainer(at: str, *, call: int, caller: str = TRAINER) -> Disturbance:
    return Disturbance(at=at, caller=caller, call=call, victim=TRAINER, kind="SIGKILL")


def loses_replica(method: str, kind: str, *, call: int) -> Disturbance:
    at = f"mindrl.workers.rollout_worker:RolloutWorker.{method}"
    return Disturbance(at=at, caller="worker 0", call=call, victim="worker 0", kind=kind)


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


@pytest.mark.parametrize(("order", "staleness"), [(IN_TURNS, 0), (ONE_OFF, 1)])
def test_a_rank_that_trains_may_be_killed_in_a_link_a_sync_a_generation_and_an_update(
    order: str,
    staleness: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [f"actor_config.load={tiny_model}", order]
    drawn = "generate" if order == IN_TURNS else "advance"
    planned = [
        loses_trainer(f"{LINKS}.open", call=2),
        loses_trainer(f"{LINKS}.send", call=3),
        loses_trainer(f"mindrl.rollout.vllm.engine:VllmEngine.{drawn}", call=2, caller="worker 0"),
        loses_trainer("mindrl.workers.training_worker:TrainingWorker.update", call=2),
    ]
    straight = ran(tmp_path / "straight", monkeypatch, asked)
    found = ran(tmp_path / "found", monkeypatch, asked, planned)
    check(found, staleness, STEPS)
    assert found.summary()["restarts"] == len(planned)
    assert computed(found) == computed(straight)
