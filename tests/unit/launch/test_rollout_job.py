"""The start and the end of a rollout job, as its signals and its files show them."""

import json
import os
import signal
from pathlib import Path

import pytest

from mindrl.cluster.ray_cluster import RayCluster
from mindrl.errors import InterruptedRunError
from mindrl.launch.jobs import rollout_job
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.programs.compose import composed_config


def test_sigusr1_does_not_end_a_rollout_job_and_an_interrupt_is_on_record(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts with the real data; where Ray would start, both signals arrive.

    Its run folder has records of a job of another spool, which it replaces.
    """
    asked = {
        "actor_config.load": tiny_model,
        "megatron_training.data_path": tiny_data / "train.jsonl",
        "megatron_training.test_data_path": tiny_data / "test.jsonl",
        "spool_config.folder": tmp_path / "spool",
        "spool_config.job": "rollout",
    }
    config = composed_config("grpo_tiny_cpu", [f"{key}={value}" for key, value in asked.items()])
    plan = check(config, PLATFORMS["cpu"])

    def start(_: RayCluster) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        raise InterruptedRunError("stopped by SIGTERM")

    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(RayCluster, "start", start)
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text('{"step": 1}\n')
    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGTERM$"):
        rollout_job(plan, PLATFORMS["cpu"], tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "interrupted"
    assert metrics.read_text() == ""
    assert signal.getsignal(signal.SIGUSR1) == before
