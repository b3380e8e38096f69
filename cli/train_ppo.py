"""Train a model with PPO: python cli/train_ppo.py --config-name NAME [key=value ...]."""

import sys

from mindrl.programs.train import train_ppo

if __name__ == "__main__":
    sys.exit(train_ppo())
