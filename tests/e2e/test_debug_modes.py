"""One half of each step alone, with real models: the same losses and responses to the bit."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from program import KEEPS, STEPS, Program, start_program

from mindrl.checkpoint.commits import checksum_of
from mindrl.observability.metrics import computed

pytestmark = pytest.mark.e2e

FEW_STEPS = 3
FEW = (
    f"megatron_training.train_iters={FEW_STEPS}",
    "megatron_training.global_batch_size=8",
    "rl_config.mini_batch_size=4",
    "rl_config.test_freq=0",
    "megatron_training.test_data_path=null",
)
KEEPS_FEW = f"megatron_training.keep_rollouts={FEW_STEPS}"


def finished(folder: Path, model: Path, *more: str) -> Program:
    run = start_program(folder, [f"actor_config.load={model}", *FEW, *more])
    assert run.process.wait(timeout=600) == 0, run.text()
    return run


def weights(run: Program) -> str:
    return checksum_of(run.folder / "model/model.safetensors")


@pytest.mark.nightly
def test_training_on_kept_rollouts_has_the_losses_and_the_weights_of_the_whole_run(
    kept_run: Program, tiny_model: Path, tmp_path: Path
) -> None:
    """Checkpoints are written too, without a rollout at the same time."""
    whole = kept_run
    asked = [f"actor_config.load={tiny_model}", *KEEPS, "megatron_training.test_data_path=null"]
    debug = ["rl_config.debug=train_only", f"rl_config.debug_rollouts={whole.folder}"]
    alone = start_program(tmp_path / "alone", [*asked, "rl_config.test_freq=0", *debug])
    assert alone.process.wait(timeout=600) == 0, alone.text()
    ours, theirs = ([computed(line) for line in run.steps()] for run in (alone, whole))
    assert len(ours) == len(theirs) == STEPS
    assert ours == theirs
    assert weights(alone) == weights(whole)
    # What an engine takes is there, if 0, wherever there is one.
    assert "seconds/generate" in whole.steps()[0].keys() - alone.steps()[0].keys()


@pytest.mark.nightly
def test_what_rollout_only_keeps_is_what_a_run_rolls_out_first_and_is_trained_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    whole = finished(tmp_path / "whole", tiny_model, KEEPS_FEW)
    kept = finished(tmp_path / "kept", tiny_model, KEEPS_FEW, "rl_config.debug=rollout_only")
    first, ours = (
        pq.read_table(run.folder / "rollouts/step-00000001.parquet") for run in (whole, kept)
    )
    learned = {"logprobs", "advantages"}
    assert set(first.column_names) - set(ours.column_names) == learned
    assert ours.equals(first.drop_columns([*learned]))
    # The second step of the run was drawn by weights that had learned.
    second = pq.read_table(kept.folder / "rollouts/step-00000002.parquet")
    assert second["uid"].equals(
        pq.read_table(whole.folder / "rollouts/step-00000002.parquet")["uid"]
    )
    assert not (kept.folder / "model").exists()
    alone = finished(
        tmp_path / "alone",
        tiny_model,
        "rl_config.debug=train_only",
        f"rl_config.debug_rollouts={kept.folder}",
    )
    assert computed(alone.steps()[0]) == computed(whole.steps()[0])
