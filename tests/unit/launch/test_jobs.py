"""What the jobs of a spool refuse before workers start, and what a rollout job keeps."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from bad_inputs import row

from mindrl.config.run import RunConfig
from mindrl.errors import SpoolError
from mindrl.launch.attempts import RunFiles
from mindrl.launch.jobs import forget_other_spool, spool_of, train_job
from mindrl.layouts.layout import RolloutLayout
from mindrl.observability.console import StepConsole
from mindrl.platform.device import planned_platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.programs.compose import composed_config
from mindrl.spool.folder import Spool, SpoolProgress
from mindrl.trainer.run_log import RunFolder


@pytest.fixture
def job_config(tokenizer_folder: Path, tmp_path: Path) -> RunConfig:
    """Return the configuration of a train job on one row."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{row('1+1=?')}\n")
    return composed_config(
        "grpo_tiny_cpu",
        [
            f"actor_config.load={tokenizer_folder}",
            f"megatron_training.data_path={rows}",
            "megatron_training.test_data_path=null",
            f"spool_config.folder={tmp_path}/spool",
            "spool_config.job=train",
        ],
    )


def test_a_train_job_that_has_lost_its_checkpoints_is_refused(
    job_config: RunConfig, tmp_path: Path
) -> None:
    """It would wait for responses that rollout jobs take for used."""
    plan = RunPlan(config=job_config, models={}, layouts={}, rollout=RolloutLayout())
    spool_of(job_config).note(SpoolProgress(gathering=5, confirmed=4, trained=8))
    with pytest.raises(SpoolError, match=r"is at step 4, but .*/run/checkpoints has no checkpoint"):
        train_job(plan, planned_platform("cpu"), tmp_path / "run")


@pytest.mark.parametrize("is_again", [False, True])
def test_a_rollout_job_that_starts_again_keeps_its_records(
    is_again: bool, job_config: RunConfig, tmp_path: Path
) -> None:
    """A record is a line with the step that requested it; the next starts write others."""
    chosen = replace(job_config, spool_config=replace(job_config.spool_config, job="rollout"))
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    records = '{"step": 1}\n{"step": 2}\n{"step": 2}\n'
    for path in (folder.metrics, folder.samples):
        path.write_text(records + '{"st')
    files = RunFiles(folder, {"actor": folder.root / "model"}, StepConsole(4, io.StringIO()))
    files.open(chosen, None, is_again=is_again).close()
    assert (folder.metrics.read_text(), folder.samples.read_text()) == (records, records)
    files.open(job_config, None, is_again=is_again).close()
    assert (folder.metrics.read_text(), folder.samples.read_text()) == ("", "")


def test_a_rollout_job_starts_anew_in_the_folder_of_another_spool(
    job_config: RunConfig, tmp_path: Path
) -> None:
    """It continues while its spool is the same, also if both folders are moved."""
    chosen = replace(job_config, spool_config=replace(job_config.spool_config, job="rollout"))
    run, records, left = tmp_path / "run", '{"step": 1}\n', []
    for place in ("spool", "spool", "moved", "other"):
        if place == "moved":
            (tmp_path / "spool").rename(tmp_path / place)
            run = run.rename(tmp_path / "moved run")
        folder = RunFolder(run)
        folder.root.mkdir(exist_ok=True)
        forget_other_spool(folder, Spool(tmp_path / place).agree({}))
        files = RunFiles(folder, {"actor": folder.root / "model"}, StepConsole(4, io.StringIO()))
        files.open(chosen, None).close()
        left.append((folder.metrics.read_text(), folder.samples.read_text()))
        for path in (folder.metrics, folder.samples):
            path.write_text(records)
    assert left == [("", ""), (records, records), (records, records), ("", "")]
