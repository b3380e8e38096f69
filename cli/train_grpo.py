"""Train a model with GRPO: python cli/train_grpo.py --config-name NAME [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("train-grpo")
