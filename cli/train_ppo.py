"""Train a model with PPO: python cli/train_ppo.py --config-name NAME [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("train-ppo")
