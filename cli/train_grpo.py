"""Train a model with GRPO: python cli/train_grpo.py --config-name NAME [key=value ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.train import train_grpo

if __name__ == "__main__":
    sys.exit(train_grpo())
