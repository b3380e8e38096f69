"""Training from Python, in a script or a notebook: `from mindrl import train`."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Unpack

from omegaconf import DictConfig

from mindrl.checkpoint.commits import CHECKPOINTS
from mindrl.config.halves import on_its_own_devices
from mindrl.config.own_functions import being_imported
from mindrl.config.run import RunConfig
from mindrl.config.section_types import SectionArguments
from mindrl.errors import ConfigError, StopRequestedError
from mindrl.launch.callbacks import Callback, Callbacks
from mindrl.launch.interrupts import signals_as_errors
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import no_collection
from mindrl.preflight.hub import with_local_folders
from mindrl.programs.compose import composed, override, run_config
from mindrl.programs.from_python import Reward, RowSource, keep_rows, reward_values, rows_place
from mindrl.programs.given_sections import check_arguments, checked_sections
from mindrl.programs.run_place import run_place
from mindrl.programs.train import check_and_train
from mindrl.report.run_record import RunRecord, read_run

_KEYS = {"train_dataset": "data_path", "eval_dataset": "test_data_path"}
"""Key of `megatron_training` by argument of `train`."""
_driver = cache(prepare_driver)
"""Called once only: modules imported afterwards have read the environment."""


def train(
    config: str | Path = "grpo_tiny_cpu",
    *,
    reward_functions: Sequence[Reward] | Mapping[Reward, float] = (),
    train_dataset: RowSource | None = None,
    eval_dataset: RowSource | None = None,
    callbacks: Sequence[Callback] = (),
    output_dir: str | Path | None = None,
    **sections: Unpack[SectionArguments],
) -> RunRecord:
    """Train as `mindrl train-grpo` does, with the same checks, and wait for the end.

    Call it in the main thread. If the script defines a reward, put the call below `if __name__ ==
    "__main__":`, because the reward processes import the script.

    Args:
        config: Name of a shipped configuration, or path of a YAML file of your own.
        reward_functions: Replaces `rl_config.verifier_function`; weights are given by a mapping,
            otherwise each is 1. The first function also measures accuracy.
        train_dataset: Replaces `megatron_training.data_path`. Rows are written to the run folder,
            from which a resumed run reads them.
        eval_dataset: Replaces `megatron_training.test_data_path` in the same way.
        callbacks: Called with the metrics of each step and evaluation (`StepView`). A callback may
            ask to stop, which is not a failure.
        output_dir: Run folder; if it has checkpoints, the run is resumed. None: a new folder named
            by the time, in `outputs`.
        **sections: Sections whose keys change the configuration, such as
            `megatron_training={"train_iters": 4}`.

    Returns:
        The contents of the run folder: metrics, summary, configuration.

    Raises:
        MindrlError: The run cannot start, or failed; the class states the reason.
    """
    check_arguments(
        config=config,
        reward_functions=reward_functions,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
        output_dir=output_dir,
    )
    changes = checked_sections(sections)
    _require_a_place_to_train()
    _driver()
    folder = Path(output_dir or time.strftime("outputs/%Y-%m-%d/%H-%M-%S")).resolve()
    given = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
    datasets = {argument: rows for argument, rows in given.items() if rows is not None}
    places = {_KEYS[each]: rows_place(folder, each, rows) for each, rows in datasets.items()}
    rewards = reward_values(reward_functions) if reward_functions else {}
    changed = (*changes.items(), ("megatron_training", places), ("rl_config", rewards))
    overrides = _overrides(changed)
    composition = _composition(config, overrides)
    run = with_local_folders(on_its_own_devices(run_config(composition)), downloads=True)
    with run_place(folder, composition, overrides):
        for argument, rows in datasets.items():
            keep_rows(folder, argument, rows, goes_on=(folder / CHECKPOINTS).is_dir())
        _train(run, folder, Callbacks(callbacks))
    return read_run(folder)


def _overrides(changed: Iterable[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Return an override per key of the sections; the last value of a key counts."""
    return [
        override(f"{section}.{key}", value)
        for section, values in changed
        for key, value in values.items()
    ]


def _require_a_place_to_train() -> None:
    """Check that training would neither wait for itself nor ignore interrupts.

    Raises:
        ConfigError: A process imports the script for its functions, or this is not the main thread.
    """
    if (path := being_imported()) is not None:
        raise ConfigError(
            f"train() is called while {path} is imported by a process that needs its functions; "
            'put the call below `if __name__ == "__main__":`'
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("train() must be called in the main thread, which handles Ctrl-C")


def _composition(config: str | Path, overrides: Sequence[str]) -> DictConfig:
    path = Path(config)
    if path.suffix == ".yaml" and not path.is_file():
        raise ConfigError(f"config={str(config)!r}: no file at {path.resolve()}")
    return composed(str(config), overrides)


def _train(config: RunConfig, folder: Path, callbacks: Callbacks) -> None:
    """Check and train; a stop that a callback asked for is not a failure."""
    with signals_as_errors(), no_collection():
        try:
            check_and_train(config, folder, callbacks)
        except StopRequestedError:
            if callbacks.stopped_after is None:
                raise
