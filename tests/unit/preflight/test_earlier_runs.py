"""What a configuration takes from an earlier run is there before a start."""

from pathlib import Path
from typing import Any

import pytest
from checked_runs import CPU, MakeConfig, model_folder, overrides, refused

from mindrl.preflight.checks import check, check_without_files


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            {"megatron_training.resume": "nope"},
            (
                "megatron_training.resume=nope must be auto, never, a run folder with checkpoints "
                "or one of them: no such folder"
            ),
        ),
        (
            {
                "rl_config.debug": "train_only",
                "rl_config.debug_rollouts": "run",
                "megatron_training.train_iters": 5,
            },
            (
                "rl_config.debug_rollouts=run: run/rollouts has no file of step 1, and of 5 of the "
                "5 of megatron_training.train_iters; a run keeps them with "
                "megatron_training.keep_rollouts"
            ),
        ),
    ],
)
def test_an_earlier_run_without_what_a_new_one_takes_from_it_is_refused(
    changes: dict[str, Any],
    finding: str,
    tmp_path: Path,
    run_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Runs next to the folder would be suggested.
    (here := tmp_path / "runs" / "today").mkdir(parents=True)
    monkeypatch.chdir(here)
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | changes)
    assert refused(config) == [finding]
    assert check_without_files(config, CPU) == [finding]
    # A run that has checkpoints of its own needs no others.
    check(config, CPU, goes_on=True)
