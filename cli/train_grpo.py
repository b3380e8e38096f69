"""Train a model with GRPO: python cli/train_grpo.py --config-name NAME [key=value ...]."""

import sys

from mindrl.programs.train import train_grpo

if __name__ == "__main__":
    sys.exit(train_grpo())
