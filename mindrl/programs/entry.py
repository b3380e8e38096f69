"""The programs, as the files of cli/ and the `mindrl` command start them."""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.errors import InstallationError
from mindrl.programs.check import check_config
from mindrl.programs.command_line import run_program
from mindrl.programs.convert import convert
from mindrl.programs.doctor import doctor
from mindrl.programs.import_config import import_config
from mindrl.programs.plan import plan


def train_grpo() -> int:
    """Train with GRPO; returns the exit code."""
    return run_program(_train, default_config="grpo_tiny_cpu", adv_estimator="group_norm")


def train_ppo() -> int:
    """Train with PPO; returns the exit code."""
    return run_program(_train, default_config="ppo_tiny_cpu", adv_estimator="gae")


def main() -> None:
    """Start a program by its name: `mindrl train-grpo --config-name NAME [key=value ...]`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in PROGRAMS:
        asked_for_help = name in ("-h", "--help")
        (sys.stdout if asked_for_help else sys.stderr).write(_usage())
        sys.exit(0 if asked_for_help else 2)
    del sys.argv[1]
    start, _ = PROGRAMS[name]
    sys.exit(start())


def _usage() -> str:
    width = max(map(len, PROGRAMS))
    lines = [f"  {name:{width}}  {does}" for name, (_, does) in PROGRAMS.items()]
    return "\n".join(
        [
            "usage: mindrl PROGRAM [arguments]",
            "",
            "programs:",
            *lines,
            "",
            "mindrl PROGRAM --help explains a program, for example: mindrl check --help",
            "",
        ]
    )


def _check() -> int:
    return check_config("mindrl check")


def _plan() -> int:
    return plan("mindrl plan")


def _convert() -> int:
    return convert("mindrl convert-ckpt")


def _import_config() -> int:
    return import_config("mindrl import-config")


def _doctor() -> int:
    return doctor("mindrl doctor")


def _train(config: RunConfig, run_dir: Path) -> None:
    # Without torch all else works: configurations are written and checked on a laptop.
    absent = [name for name in ("torch", "megatron", "vllm") if find_spec(name) is None]
    if absent:
        raise InstallationError(
            f"training needs {', '.join(absent)}, which this Python does not have; "
            "`mindrl doctor` says what to install on this machine"
        )
    # Imported late: --help, --cfg and --dry-run answer in a second, without torch and Ray.
    from mindrl.launch.train import train  # noqa: PLC0415

    train(config, run_dir)


PROGRAMS: Mapping[str, tuple[Callable[[], int], str]] = {
    "doctor": (_doctor, "look at this machine: versions, devices, memory, limits, ports, disks"),
    "check": (_check, "find everything that keeps a run from working, before anything is started"),
    "plan": (_plan, "predict memory, reshard and all derived numbers of a run"),
    "import-config": (_import_config, "turn a MindSpeed-RL configuration into one of mindrl"),
    "convert-ckpt": (_convert, "turn a model folder into rank files of a layout, and back"),
    "train-grpo": (train_grpo, "train with GRPO"),
    "train-ppo": (train_ppo, "train with PPO"),
}
"""By name: what starts it, and what it does in a line."""
