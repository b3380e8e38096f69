"""The training programs: `python cli/train_grpo.py` and `python cli/train_ppo.py`."""

from importlib.util import find_spec
from pathlib import Path

from mindrl.config.backends import ROLLOUT_BACKEND, TRAINING_BACKEND
from mindrl.config.run import RunConfig
from mindrl.errors import InstallationError
from mindrl.platform.device import choose_platform
from mindrl.platform.garbage import collect_again
from mindrl.preflight.checks import check
from mindrl.programs.command_line import run_program


def train_grpo() -> int:
    """Train with GRPO; returns the exit code."""
    return run_program(_train, default_config="grpo_tiny_cpu", adv_estimator="group_norm")


def train_ppo() -> int:
    """Train with PPO; returns the exit code."""
    return run_program(_train, default_config="ppo_tiny_cpu", adv_estimator="gae")


def _train(config: RunConfig, run_dir: Path) -> None:
    # Without torch all else works: configurations are written and checked on a laptop.
    absent = [
        name for name in ("torch", TRAINING_BACKEND, ROLLOUT_BACKEND) if find_spec(name) is None
    ]
    if absent:
        raise InstallationError(
            f"training needs {', '.join(absent)}, which this Python does not have; "
            "`mindrl doctor` says what to install on this machine"
        )
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform)
    # Imported late: it brings torch and Ray along, and a refusal costs what a check does.
    from mindrl.launch.train import train  # noqa: PLC0415

    collect_again()
    train(plan, platform, run_dir)
