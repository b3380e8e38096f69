"""A real run on a disk that holds one checkpoint and no second."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import start_program

from mindrl.checkpoint.commits import Commits

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run folder whose checkpoints have 20 MiB, of which one takes 13."""
    disk = tmp_path / "run/checkpoints"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts a disk")
    yield disk.parent
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(("policy", "code", "steps"), [("skip", 0, 4), ("stop", 1, 2)])
def test_a_full_disk_costs_a_run_its_checkpoint_or_ends_it(
    policy: str, code: int, steps: int, run_folder: Path, tiny_model: Path
) -> None:
    keys = {"train_iters": 4, "save_interval": 1, "keep_last": 1, "export_interval": 0}
    overrides = [f"megatron_training.{key}={value}" for key, value in keys.items()]
    overrides += [f"megatron_training.on_save_failure={policy}", "rl_config.test_freq=0"]
    program = start_program(run_folder, [*overrides, f"actor_config.load={tiny_model}"])
    assert program.process.wait(timeout=600) == code, program.text()
    assert [line["step"] for line in program.steps()] == [*range(1, steps + 1)]
    newest, problems = Commits(run_folder / "checkpoints").newest_complete()
    assert newest is not None
    assert (newest.step, problems) == (1, [])
    summary = program.summary()
    assert summary["skipped_checkpoints"] == (3 if policy == "skip" else 0)
    assert "step-00000002 was not started: it needs 1" in " ".join(program.text().split())
