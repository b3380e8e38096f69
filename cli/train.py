"""Train with any configuration: python cli/train.py --config-name NAME [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("train")
