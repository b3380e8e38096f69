"""The programs, as the files of cli/ and the `mindrl` command start them."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.launch.check_program import check_config
from mindrl.launch.command_line import run_program
from mindrl.launch.convert_program import convert
from mindrl.launch.import_program import import_config
from mindrl.launch.plan_program import plan
from mindrl.launch.shipped import config_folder


def train_grpo() -> int:
    """Train with GRPO; returns the exit code."""
    return run_program(
        _train, configs=config_folder(), default_config="grpo_tiny_cpu", adv_estimator="group_norm"
    )


def train_ppo() -> int:
    """Train with PPO; returns the exit code."""
    return run_program(
        _train, configs=config_folder(), default_config="ppo_tiny_cpu", adv_estimator="gae"
    )


def main() -> None:
    """Start a program by its name: `mindrl train-grpo --config-name NAME [key=value ...]`."""
    programs: Mapping[str, Callable[[], int]] = {
        "train-grpo": train_grpo,
        "train-ppo": train_ppo,
        "check": _check,
        "plan": _plan,
        "convert-ckpt": _convert,
        "import-config": _import_config,
    }
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in programs:
        asked_for_help = name in ("-h", "--help")
        stream = sys.stdout if asked_for_help else sys.stderr
        stream.write(
            "usage: mindrl PROGRAM [arguments]\n\n"
            f"programs: {', '.join(programs)}\n"
            "mindrl PROGRAM --help explains a program\n"
        )
        sys.exit(0 if asked_for_help else 2)
    del sys.argv[1]
    sys.exit(programs[name]())


def _check() -> int:
    return check_config("mindrl check")


def _plan() -> int:
    return plan("mindrl plan")


def _convert() -> int:
    return convert("mindrl convert-ckpt")


def _import_config() -> int:
    return import_config("mindrl import-config")


def _train(config: RunConfig, run_dir: Path) -> None:
    # Imported late: --help, --cfg and --dry-run answer in a second, without torch and Ray.
    from mindrl.launch.train_program import train  # noqa: PLC0415

    train(config, run_dir)
