"""Train a model with GRPO: python cli/train_grpo.py --config-name NAME [key=value ...]."""

import sys
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.launch.command_line import run_program


def train(config: RunConfig, run_dir: Path) -> None:
    """Run the training."""
    # Imported late: --help, --cfg and --dry-run answer in a second, without torch and Ray.
    from mindrl.launch.grpo import train_grpo  # noqa: PLC0415

    train_grpo(config, run_dir)


if __name__ == "__main__":
    sys.exit(
        run_program(
            train,
            configs=Path(__file__).resolve().parents[1] / "configs",
            default_config="grpo_tiny_cpu",
        )
    )
