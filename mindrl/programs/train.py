"""Train with any configuration: `mindrl train`, and its names that assume an algorithm."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mindrl.checkpoint.commits import CHECKPOINTS
from mindrl.config.backends import ROLLOUT_BACKEND, TRAINING_BACKEND
from mindrl.config.changed import with_value
from mindrl.config.halves import on_its_own_devices
from mindrl.config.run import RunConfig
from mindrl.config.sft import SFTConfig
from mindrl.config.supervision import supervised
from mindrl.data.files import data_is_here
from mindrl.data.vocabulary import has_vocabulary
from mindrl.errors import ConfigError, InstallationError, OutputError, SpoolError
from mindrl.launch.callbacks import Callbacks
from mindrl.launch.interrupts import signals_as_errors
from mindrl.launch.prefork import start_prefork
from mindrl.models.vision import image_token
from mindrl.observability.terminal import print_rows, say
from mindrl.platform.device import Platform, choose_platform, planned_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.platform.patches import transformers_without_torch
from mindrl.platform.vision import vision_trouble
from mindrl.preflight.hub import with_local_folders
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.command_line import options_first, refuse_no_name, taken
from mindrl.programs.compose import composing, located, override, run_config
from mindrl.programs.exits import exit_code
from mindrl.programs.run_place import require_checkpoint, run_place
from mindrl.programs.train_help import print_help

if TYPE_CHECKING:
    from mindrl.preflight.run_shardings import RunPlan

_DRY_RUN, _RESUME, _ELSEWHERE = "--dry-run", "--resume", "--elsewhere"


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What a name of the program assumes about a configuration."""

    config: str | None = "grpo_tiny_cpu"
    """Used without `--config-name`; None if that is required."""
    critic: bool | None = None
    """Whether the run must have a critic; None if it may."""
    supervised: bool = False
    """Whether to fine-tune on the answers in the data."""
    job: Literal["train", "rollout"] | None = None
    """Kind of a job of a spool."""
    needs: tuple[str, ...] = ()
    """Examples of the overrides that it cannot start without."""

    def applied(self, config: RunConfig) -> RunConfig:
        """Return the configuration with what the name sets."""
        if self.supervised:
            config = supervised(replace(config, sft_config=config.sft_config or SFTConfig()))
        if self.job is not None:
            config = with_value(config, "spool_config.job", self.job)
        return config


_SPOOL = "spool_config.folder=/shared/spool"
_NAMES: Mapping[str, Assumed] = {
    "mindrl train": Assumed(config=None),
    "mindrl train-grpo": Assumed(critic=False),
    "mindrl train-ppo": Assumed(config="ppo_tiny_cpu", critic=True),
    "mindrl train-sft": Assumed(config="sft_tiny_cpu", supervised=True),
    "mindrl job train": Assumed(job="train", needs=(_SPOOL, "megatron_training.save_interval=5")),
    "mindrl job rollout": Assumed(job="rollout", needs=(_SPOOL,)),
}


def run_program(assumed: Assumed, *, name: str = "mindrl train") -> int:
    """Train with the configuration of the command line; return the exit code."""
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
            config = on_its_own_devices(assumed.applied(run_config(composed)))
            config = with_local_folders(config, downloads=not dry_run)
            _check_algorithm(config, assumed)
            if dry_run:
                explain(config, elsewhere=elsewhere)
            else:
                hydra = HydraConfig.instance().cfg.hydra
                run_dir = Path(hydra.runtime.output_dir)
                with run_place(run_dir, composed, hydra.overrides.task, hydra):
                    check_and_train(config, run_dir)
        except Exception as error:  # noqa: BLE001 - raised again outside of Hydra
            errors.append(error)

    @signals_as_errors()
    def checked() -> int:
        _start(task, assumed, name, dry_run=dry_run)
        for error in errors:
            raise error
        return 0

    with planning():
        # The scheduler of two jobs starts no job again after the exit code of bad input.
        return exit_code(checked, SpoolError)


def _check_algorithm(config: RunConfig, assumed: Assumed) -> None:
    if assumed.critic is None:
        return
    found, critic = config.rl_config.adv_estimator, assumed.critic
    if config.sft_config is not None:
        what = ("train-grpo", "train-ppo")[critic]
        raise ConfigError(f"sft_config is set, but {what} needs rewards; use train-sft")
    if (found == "gae") != critic:
        what = ("train-grpo trains without a critic", "train-ppo trains with gae")[critic]
        other = ("train-ppo", "train-grpo")[critic]
        raise ConfigError(f"rl_config.adv_estimator={found}: {what}; use {other} for {found}")


def explain(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Validate a configuration without a cluster and print the derived numbers.

    With `elsewhere`, devices and files may be missing on this machine.

    Raises:
        ConfigError: The configuration cannot run.
    """
    # Imported late, here and below: help needs no checks.
    from mindrl.preflight.checks import check, check_without_files  # noqa: PLC0415
    from mindrl.preflight.derived_numbers import derived_numbers  # noqa: PLC0415

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
    _hide_torch_from_transformers(config)
    # Imported late: they load transformers and sympy.
    from mindrl.data.run_data import data_lines, read_data  # noqa: PLC0415
    from mindrl.launch.reward_trials import warn_of_data  # noqa: PLC0415

    # Their compiled parts count what is left of them when the program ends.
    collect_again()
    data = read_data(config)
    yield from data_lines(data)
    warn_of_data(config, data)


def _hide_torch_from_transformers(config: RunConfig) -> None:
    """Save half of the start: this process only loads a tokenizer, and workers load the models.

    Code of the user may load models, and torch decides which image processor there is.
    """
    names = {name for weights in config.reward_weights.values() for name in weights}
    own_code = (
        config.environment_config is not None
        or config.generate_config.trust_remote_code
        or any(":" in name and "://" not in name for name in names)
    )
    if not (own_code or image_token(config.actor_config.load)):
        transformers_without_torch.install()


def require_engines(config: RunConfig | None = None) -> None:
    """Check that torch and the engines of training are installed; other programs need none.

    Raises:
        InstallationError: One of them is not installed, or torchvision is and does not load.
    """
    trains = {TRAINING_BACKEND}
    if config is not None:
        roles = config.roles if config.learns else ()
        trains = {config.training_backend(role) for role in roles}
    megatron = (TRAINING_BACKEND,) if TRAINING_BACKEND in trains else ()
    engine = (ROLLOUT_BACKEND,) if config is None or config.rolls_out else ()
    router = ("vllm_router",) if config is not None and config.generate_config.router else ()
    require_packages("training", *megatron, *engine, *router)
    if (trouble := vision_trouble()) is not None:
        raise InstallationError(trouble)


def require_packages(what: str, *others: str) -> None:
    """Check that torch and other packages are installed.

    Raises:
        InstallationError: One of them is not installed.
    """
    absent = [name for name in ("torch", *others) if find_spec(name) is None]
    if absent:
        raise InstallationError(
            f"{what} needs {', '.join(absent)}, which this Python does not have; run "
            "`mindrl doctor` to see what to install"
        )


def checked_plan(config: RunConfig) -> "tuple[RunPlan, Platform]":
    """Check a run that exports no model; returns its plan and its platform.

    Raises:
        ConfigError: The configuration cannot run.
        InstallationError: torch or an engine is not installed.
    """
    from mindrl.preflight.checks import check  # noqa: PLC0415

    require_engines()
    platform = choose_platform(config.rl_config.device)
    return check(config, platform, goes_on=True), platform


def check_and_train(config: RunConfig, run_dir: Path, callbacks: Callbacks | None = None) -> None:
    """Check a run and train it to its end, or do its part as a job of a spool.

    Raises as `check`, and as `mindrl.launch.train`.
    """
    job = config.spool_config.job
    if job is not None and callbacks is not None and callbacks.functions:
        raise ConfigError(f"spool_config.job={job}: a job calls no callbacks; use callbacks=[]")
    from mindrl.preflight.checks import check  # noqa: PLC0415

    require_engines(config)
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform, goes_on=(run_dir / CHECKPOINTS).is_dir(), here=job is None)
    if callbacks is None:
        _hide_torch_from_transformers(config)
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    if job is not None:
        from mindrl.launch.jobs import rollout_job, train_job  # noqa: PLC0415

        collect_again()
        (train_job if job == "train" else rollout_job)(plan, platform, run_dir)
        return
    with start_prefork(config, platform) or nullcontext() as prefork:
        from mindrl.launch.train import train  # noqa: PLC0415

        collect_again()
        train(plan, platform, run_dir, callbacks=callbacks, prefork=prefork)


def _start(
    task: Callable[[DictConfig], None], assumed: Assumed, program: str, *, dry_run: bool
) -> None:
    """Compose the configuration that the command line names with Hydra, and call the task."""
    name, own_folder = _named(assumed)
    if {"--help", "-h"} & {*sys.argv}:
        print_help(program, name, own_folder, default=assumed.config, needs=assumed.needs)
        return
    if name is None:
        refuse_no_name(sys.argv[1:])
    name, own_folder = located(name, own_folder)
    with composing(name, own_folder, sys.argv[1:]) as (folder, more):
        if dry_run and not any(each.startswith("-") for each in sys.argv[1:]):
            # Hydra's own main function would create a run folder.
            with initialize_config_dir(folder, version_base="1.3"):
                task(compose(name, overrides=[*sys.argv[1:], *more]))
            return
        # The task writes the files of .hydra itself, after it has locked the folder.
        own = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
        sys.argv[1:] = options_first([*sys.argv[1:], *more, *own])
        try:
            hydra.main(version_base="1.3", config_path=folder, config_name=name)(task)()
        except OSError as error:
            if error.errno is None:
                # Raised by OmegaConf for a file without sections.
                raise
            raise OutputError(f"cannot create the run folder: {error}") from error


def _named(assumed: Assumed) -> tuple[str | None, str | None]:
    """Take the configuration's name and folder from the command line, or from the resumed run."""
    name = taken("--config-name", "-cn")
    # Hydra would search for a path next to this file, and for a folder after configs/.
    own_folder = taken("--config-dir", "-cd", "--config-path", "-cp")
    if (resumed := taken(_RESUME)) is not None:
        folder = run_folder(_RESUME, resumed)
        # A rollout job has no checkpoints.
        if assumed.job != "rollout":
            require_checkpoint(_RESUME, folder)
        sys.argv.append(override("hydra.run.dir", folder))
        if name is None:
            return "config", str(folder / ".hydra")
    return name or assumed.config, own_folder


def run_folder(option: str, text: str) -> Path:
    """Return the folder of a run that an option names.

    Raises:
        ConfigError: It is not a run folder.
    """
    folder = Path(text).resolve()
    if not (folder / ".hydra/config.yaml").is_file():
        raise ConfigError(f"{option} {text}: not a run folder; it has no .hydra/config.yaml")
    return folder


def _train(name: str) -> int:
    return run_program(_NAMES[name], name=name)


PROGRAM = _train
