"""Whole runs that draw ahead, whose engine keeps one tensor of its first weights."""

import json
from pathlib import Path

import pytest
from disturbances import Disturbance, environment, witnesses
from step_orders import replicas
from test_ahead_runs import ran
from test_two_jobs import two_jobs

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

STALE = Disturbance(
    at="mindrl.rollout.vllm.shards:EngineShards.close",
    caller="worker 0",
    call=2,
    victim="worker 0",
    kind="stale:model.layers.0.mlp.down_proj.weight",
)


@pytest.mark.parametrize("planted", [[STALE], []], ids=["stale", "sound"])
@pytest.mark.parametrize("order", ["asynchronous", "one_step_off"])
def test_one_stale_tensor_after_a_sync_ends_the_run_in_three_steps(
    order: str,
    planted: list[Disturbance],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At this learning rate an update moves log-probs by more than 1e-3 nats, the limit here."""
    run = ran(
        tmp_path / "run",
        tiny_model,
        monkeypatch,
        *(f"rl_config.step_order={order}", replicas(1)),
        *("actor_config.lr=2e-3", "actor_config.lr_warmup_fraction=0"),
        "megatron_training.train_iters=8",
        planned=planted,
    )
    gaps = [line.get("logprob_gap/mean", 0.0) for line in run.steps()]
    if not planted:
        assert run.process.returncode == 0, run.text()
        # Rounding, in every step that has a replica that draws.
        assert 0 < max(gaps) < 1e-5
        assert all("logprob_gap/probe_tokens" in line for line in run.steps()[:6])
        return
    assert run.process.returncode != 0
    assert gaps[0] < 1e-5
    assert min(gaps[1:]) > 1e-3
    assert "for 3 step(s) in a row: weights, temperature or precision of" in run.text()


@pytest.mark.parametrize("planted", [[STALE], []], ids=["stale", "sound"])
def test_one_stale_tensor_in_the_engine_of_a_rollout_job_ends_the_train_job(
    planted: list[Disturbance], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = tmp_path / "disturbed"
    for name, value in environment(around, planted).items():
        monkeypatch.setenv(name, value)
    jobs = two_jobs(
        tmp_path / "jobs",
        tiny_model,
        7,
        *("actor_config.lr=2e-3", "actor_config.lr_warmup_fraction=0"),
        *("generate_config.sampling_config.temperature=0.8", "rl_config.max_staleness=1"),
    )
    jobs.start("--max-starts", "1")
    assert jobs.process is not None
    code = jobs.process.wait(timeout=600)
    steps = [json.loads(line) for line in (jobs.folder / "train/metrics.jsonl").open()]
    gaps = [line["logprob_gap/mean"] for line in steps if "logprob_gap/probe_tokens" in line]
    if not planted:
        assert code == 0, jobs.text()
        assert len(gaps) == 5
        # Rounding: the two read the same 64 tokens, at the same temperature.
        assert 0 < max(gaps) < 1e-5
        return
    assert code != 0
    assert witnesses(around)
    assert min(gaps) > 1e-3
    assert "for 3 step(s) in a row: weights, temperature or precision of" in jobs.text()
