"""Train a model with PPO: python cli/train_ppo.py --config-name NAME [key=value ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.train import train_ppo

if __name__ == "__main__":
    sys.exit(train_ppo())
