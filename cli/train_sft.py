"""Fine-tune a model on answers that the data has: python cli/train_sft.py [key=value ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.train import train_sft

if __name__ == "__main__":
    sys.exit(train_sft())
