"""The training programs: `mindrl train-grpo`, `mindrl train-ppo` and `mindrl train-sft`."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mindrl.checkpoint.commits import CHECKPOINTS
from mindrl.config.backends import ROLLOUT_BACKEND, TRAINING_BACKEND
from mindrl.config.halves import on_its_own_devices
from mindrl.config.run import RunConfig
from mindrl.config.sft import SFTConfig
from mindrl.config.supervision import supervised
from mindrl.data.files import data_is_here
from mindrl.data.vocabulary import has_vocabulary
from mindrl.errors import ConfigError, InstallationError, OutputError
from mindrl.launch.callbacks import Callbacks
from mindrl.launch.interrupts import signals_as_errors
from mindrl.launch.prefork import start_prefork
from mindrl.observability.terminal import print_rows, say
from mindrl.platform.device import choose_platform, planned_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.preflight.checks import check, check_without_files
from mindrl.preflight.derived_numbers import derived_numbers
from mindrl.preflight.hub import with_local_folders
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.command_line import taken
from mindrl.programs.compose import composing, located, run_config
from mindrl.programs.exits import exit_code
from mindrl.programs.run_place import require_checkpoint, run_place
from mindrl.programs.version import prints_version

_DRY_RUN, _RESUME, _ELSEWHERE = "--dry-run", "--resume", "--elsewhere"


def train_grpo() -> int:
    """Train with GRPO; returns the exit code."""
    return run_program(check_and_train, default_config="grpo_tiny_cpu", has_critic=False)


def train_ppo() -> int:
    """Train with PPO; returns the exit code."""
    return run_program(check_and_train, default_config="ppo_tiny_cpu", has_critic=True)


def train_sft() -> int:
    """Fine-tune on the answers in the data; returns the exit code."""
    return run_program(
        check_and_train, default_config="sft_tiny_cpu", has_critic=None, of_program=with_answers
    )


def with_answers(config: RunConfig) -> RunConfig:
    """Return the configuration with supervised fine-tuning switched on."""
    return supervised(replace(config, sft_config=config.sft_config or SFTConfig()))


def run_program(
    train: Callable[[RunConfig, Path], object],
    *,
    default_config: str,
    has_critic: bool | None,
    of_program: Callable[[RunConfig], RunConfig] = lambda config: config,
    has_checkpoints: bool = True,
) -> int:
    """Call `train` with the configuration of the command line and the run folder.

    `default_config` is used without `--config-name`; `of_program` applies the program's own
    settings. With `has_critic` None both kinds are allowed; a program without checkpoints can
    resume any run folder. Returns the exit code.
    """
    if prints_version():
        return 0
    dry_run = _DRY_RUN in sys.argv
    elsewhere = dry_run and _ELSEWHERE in sys.argv
    flags = (_DRY_RUN, *((_ELSEWHERE,) if elsewhere else ()))
    sys.argv = [argument for argument in sys.argv if argument not in flags]
    prepare_driver()

    # Keep errors of the run: Hydra would print them itself, and they must not be taken for errors
    # in creating the run folder.
    errors: list[Exception] = []

    def task(composed: DictConfig) -> None:
        try:
            config = on_its_own_devices(of_program(run_config(composed)))
            config = with_local_folders(config, downloads=not dry_run)
            _check_program(config, has_critic=has_critic)
            if dry_run:
                explain(config, elsewhere=elsewhere)
            else:
                hydra = HydraConfig.instance().cfg.hydra
                run_dir = Path(hydra.runtime.output_dir)
                with run_place(run_dir, composed, hydra.overrides.task, hydra):
                    train(config, run_dir)
        except Exception as error:  # noqa: BLE001 - raised again outside of Hydra
            errors.append(error)

    @signals_as_errors()
    def checked() -> int:
        _start(task, default_config, dry_run=dry_run, has_checkpoints=has_checkpoints)
        for error in errors:
            raise error
        return 0

    with planning():
        return exit_code(checked)


def _check_program(config: RunConfig, *, has_critic: bool | None) -> None:
    found = config.rl_config.adv_estimator
    if has_critic is not None and config.sft_config is not None:
        what = ("train-grpo", "train-ppo")[has_critic]
        raise ConfigError(f"sft_config is set, but {what} needs rewards; use train-sft")
    if has_critic is not None and (found == "gae") != has_critic:
        what = ("train-grpo trains without a critic", "train-ppo trains with gae")[has_critic]
        other = ("train-ppo", "train-grpo")[has_critic]
        raise ConfigError(f"rl_config.adv_estimator={found}: {what}; use {other} for {found}")


def explain(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Validate a configuration without a cluster and print the derived numbers.

    With `elsewhere`, devices and files may be missing on this machine.

    Raises:
        ConfigError: The configuration cannot run.
    """
    platform, missing = planned_platform(config.rl_config.device), []
    if elsewhere:
        missing = check_without_files(config, platform)
    else:
        check(config, platform, here=True)
    print_rows(derived_numbers(config, platform).items())
    say(*(f"missing here, so not checked: {finding}" for finding in missing))
    if elsewhere:
        note_shipped_sizes(config)
    missing += [] if missing else [*_unread(config)]
    say(*(f"rows and rewards not checked: {each}" for each in missing[:1]))
    for line in () if missing else _data_lines(config):
        say(line)
    say(f"the configuration is valid{', except for missing files' if missing else ''}")


def _unread(config: RunConfig) -> Iterator[str]:
    """Yield the reasons why rows cannot be read on this machine."""
    trusts = config.generate_config.trust_remote_code
    if not data_is_here(config):
        yield "a data file is missing here"
    if not has_vocabulary(config.tokenizer_path, trust_remote_code=trusts):
        yield f"{config.tokenizer_path} has no tokenizer"


def _data_lines(config: RunConfig) -> Iterator[str]:
    """Read the rows and try the rewards; yields the lines about the data."""
    # Imported late: they load transformers and sympy.
    from mindrl.data.run_data import data_lines, read_data  # noqa: PLC0415
    from mindrl.launch.reward_trials import warn_of_data  # noqa: PLC0415

    # Their compiled parts count what is left of them when the program ends.
    collect_again()
    data = read_data(config)
    yield from data_lines(data)
    warn_of_data(config, data)


def require_engines(config: RunConfig | None = None) -> None:
    """Check that torch and the engines of training are installed; other programs need none.

    Raises:
        InstallationError: One of them is not installed.
    """
    trains = {TRAINING_BACKEND}
    if config is not None:
        roles = config.roles if config.learns else ()
        trains = {config.training_backend(role) for role in roles}
    megatron = (TRAINING_BACKEND,) if TRAINING_BACKEND in trains else ()
    engine = (ROLLOUT_BACKEND,) if config is None or config.rolls_out else ()
    router = ("vllm_router",) if config is not None and config.generate_config.router else ()
    needed = ("torch", *megatron, *engine, *router)
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        raise InstallationError(
            f"training needs {', '.join(absent)}, which this Python does not have; run "
            "`mindrl doctor` to see what to install"
        )


def require_rollout_engine() -> None:
    """Check that torch and the rollout engine are installed.

    Raises:
        InstallationError: One of them is not installed.
    """
    absent = [name for name in ("torch", ROLLOUT_BACKEND) if find_spec(name) is None]
    if absent:
        raise InstallationError(
            f"an answer needs {', '.join(absent)}, which this Python does not have; run "
            "`mindrl doctor` to see what to install"
        )


def check_and_train(config: RunConfig, run_dir: Path, callbacks: Callbacks | None = None) -> None:
    """Check a run and train it to its end; raises as `check`, and as `mindrl.launch.train`."""
    require_engines(config)
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform, goes_on=(run_dir / CHECKPOINTS).is_dir(), here=True)
    with start_prefork(config, platform) or nullcontext() as prefork:
        # Imported late: it loads torch and Ray, and errors should come as fast as in a check.
        from mindrl.launch.train import train  # noqa: PLC0415

        collect_again()
        train(plan, platform, run_dir, callbacks=callbacks, prefork=prefork)


def _start(
    task: Callable[[DictConfig], None],
    default_config: str,
    *,
    dry_run: bool,
    has_checkpoints: bool,
) -> None:
    """Compose the configuration that the command line names with Hydra, and call the task."""
    name = taken("--config-name", "-cn")
    # Hydra would search for a path next to this file, and for a folder after configs/.
    own_folder = taken("--config-dir", "-cd", "--config-path", "-cp")
    if (resumed := taken(_RESUME)) is not None:
        going_on = run_folder(_RESUME, resumed)
        if has_checkpoints:
            require_checkpoint(_RESUME, going_on)
        sys.argv.append(f"hydra.run.dir='{going_on}'")
        if name is None:
            name, own_folder = "config", str(going_on / ".hydra")
    name, own_folder = located(name or default_config, own_folder)
    with composing(name, own_folder, sys.argv[1:]) as (folder, more):
        if dry_run and not any(each.startswith("-") for each in sys.argv[1:]):
            # Hydra's own main function would create a run folder.
            with initialize_config_dir(folder, version_base="1.3"):
                task(compose(name, overrides=[*sys.argv[1:], *more]))
            return
        # The task writes the files of .hydra itself, after it has locked the folder.
        own = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
        sys.argv += [*more, *own]
        program = hydra.main(version_base="1.3", config_path=folder, config_name=name)(task)
        try:
            program()
        except BrokenPipeError:
            # The reader of the help, such as `head`, has closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            if error.errno is None:
                # Raised by OmegaConf for a file without sections.
                raise
            raise OutputError(f"cannot create the run folder: {error}") from error


def run_folder(option: str, text: str) -> Path:
    """Return the folder of a run that an option names.

    Raises:
        ConfigError: It is not a run folder.
    """
    folder = Path(text).resolve()
    if not (folder / ".hydra/config.yaml").is_file():
        raise ConfigError(f"{option} {text}: not a run folder; it has no .hydra/config.yaml")
    return folder
