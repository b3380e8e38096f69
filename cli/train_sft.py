"""Fine-tune a model on the answers in the data: python cli/train_sft.py [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("train-sft")
