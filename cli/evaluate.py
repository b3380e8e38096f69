"""Evaluate a model or the model of a run: python cli/evaluate.py MODEL_OR_RUN [--data FILE]."""

from in_environment import start

if __name__ == "__main__":
    start("evaluate")
