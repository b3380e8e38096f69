"""A run that PyTorch alone trains, beside the same run of Megatron."""

from pathlib import Path

import pytest
from program import STEPS, Program, start_program
from timelines import check_step

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SAME = ("update/policy_loss", "update/grad_norm", "update/entropy", "reward/mean")


def test_the_engine_of_a_string_trains_as_megatron_does(
    kept_run: Program, tiny_model: Path, tmp_path: Path
) -> None:
    """The first steps agree; later ones may draw another token where two are next to equal."""
    asked = [f"actor_config.load={tiny_model}", "actor_config.backend=archon:d2"]
    asked += [f"megatron_training.train_iters={STEPS}", "rl_config.test_freq=0"]
    run = start_program(tmp_path / "run", asked)
    assert run.process.wait(timeout=600) == 0, run.text()
    assert "were predicted" not in run.text()
    dimensions = "Initialized Archon engine with parallel dims: pp=1, dp_shard=2, tp=1, cp=1, ep=1"
    assert dimensions in (run.folder / "logs/worker_0.log").read_text()
    timeline = check_step(run, 2)
    for name in ("forward", "backward", "optimizer step"):
        assert timeline.named("worker-1", name), name
    for ours, theirs in zip(run.steps()[:2], kept_run.steps()[:2], strict=True):
        # Sums of float32 in another order.
        assert [ours[key] for key in SAME] == pytest.approx([theirs[key] for key in SAME], rel=1e-5)
