"""What a configuration takes from an earlier run. Imports no torch."""

from pathlib import Path

from mindrl.checkpoint.commits import Commits
from mindrl.checkpoint.search import find_checkpoints
from mindrl.checkpoint.step_names import steps_in
from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError, ConfigError
from mindrl.observability.output_files import output_errors

ROLLOUT_SUFFIX = ".parquet"
"""End of the names of rollout files."""


def named_checkpoints(place: str) -> tuple[Commits, list[int]]:
    """Return the checkpoints in `megatron_training.resume`, as `find_checkpoints`.

    Raises:
        CheckpointError: It has none.
    """
    try:
        return find_checkpoints(Path(place))
    except CheckpointError as error:
        raise CheckpointError(
            f"megatron_training.resume={place} must be auto, never, a run folder with checkpoints "
            f"or one of them: {error}"
        ) from error


def named_rollouts(config: RunConfig) -> Path:
    """Return the folder of stored rollouts in `rl_config.debug_rollouts`.

    Raises:
        ConfigError: A step of the run has no file there.
        OutputError: The folder cannot be listed.
    """
    run, steps = config.rl_config.debug_rollouts, config.megatron_training.train_iters
    folder = Path(str(run)) / "rollouts"
    with output_errors(folder):
        there = {*steps_in(folder, ROLLOUT_SUFFIX)}
    if lacking := [step for step in range(1, steps + 1) if step not in there]:
        raise ConfigError(
            f"rl_config.debug_rollouts={run}: {folder} has no file of step {lacking[0]}, and of "
            f"{len(lacking)} of the {steps} of megatron_training.train_iters; "
            "a run keeps them with megatron_training.keep_rollouts"
        )
    return folder
