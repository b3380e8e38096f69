"""What the programs in cli/ share: overrides checked, errors shown in words, exit codes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mindrl.config.hydra_defaults import register_defaults
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, OutputError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import planning
from mindrl.programs.compose import beside, check_overrides, composing, run_config, searched
from mindrl.programs.exits import exit_code

Train = Callable[[RunConfig, Path], object]

_DRY_RUN = "--dry-run"


def run_program(train: Train, *, default_config: str, adv_estimator: str) -> int:
    """Run a training program with the command line's arguments; returns the exit code.

    Args:
        train: Called with the configuration and the run folder.
        default_config: Used where the command line has no `--config-name`.
        adv_estimator: The one value of `rl_config.adv_estimator` that is this program's.
    """
    dry_run = _DRY_RUN in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != _DRY_RUN]
    prepare_driver()
    register_defaults()

    # Hydra would print an error in its own words before it passes it on, and an error of the run
    # is to be told from one in making its folder.
    errors: list[Exception] = []

    def task(composed: DictConfig) -> None:
        try:
            config = run_config(composed)
            _check_program(config, adv_estimator)
            if dry_run:
                # Imported late: a run and its refusal do without.
                from mindrl.programs.dry_run import explain  # noqa: PLC0415

                explain(config)
            else:
                train(config, Path(HydraConfig.get().runtime.output_dir))
        except Exception as error:  # noqa: BLE001 - raised again where Hydra does not see it
            errors.append(error)

    def checked() -> int:
        with signals_as_errors():
            _start(task, default_config)
        for error in errors:
            raise error
        return 0

    with planning():
        return exit_code(checked)


def _check_program(config: RunConfig, adv_estimator: str) -> None:
    found = config.rl_config.adv_estimator
    if found != adv_estimator:
        others = {"group_norm": "train_grpo", "gae": "train_ppo"}
        raise ConfigError(
            f"rl_config.adv_estimator={found}: {others[adv_estimator]} trains with "
            f"{adv_estimator}; for {found} there is {others[found]}"
        )


def _start(task: Callable[[DictConfig], None], default_config: str) -> None:
    """Let Hydra compose the configuration that the command line names, and call the task."""
    name = _taken("--config-name", "-cn") or default_config
    # Hydra would look for one of them beside this file, and for the other behind configs/.
    own, *shipped = folders = searched(_taken("--config-dir", "-cd", "--config-path", "-cp"))
    check_overrides(sys.argv[1:])
    sys.argv += beside(shipped)
    program = hydra.main(version_base="1.3", config_path=str(own), config_name=name)(task)
    with composing(name, folders):
        try:
            program()
        except BrokenPipeError:
            # Whoever read the help, such as `head`, has enough of it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            if error.errno is None:
                # OmegaConf's, of a file that holds no sections.
                raise
            raise OutputError(f"the run folder cannot be made: {error}") from error


def _taken(*names: str) -> str | None:
    """Take an option and its value out of the command line."""
    value, rest = None, []
    arguments = iter(sys.argv)
    for argument in arguments:
        name, equals, given = argument.partition("=")
        if name in names:
            value = given if equals else next(arguments, None)
        else:
            rest.append(argument)
    sys.argv = rest
    return value
