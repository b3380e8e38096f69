"""Measure a model, or that of a run: python cli/evaluate.py MODEL_OR_RUN [--data FILE]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.evaluate import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
