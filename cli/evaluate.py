"""Measure a model, or that of a run: python cli/evaluate.py MODEL_OR_RUN [--data FILE]."""

import sys

from mindrl.programs.evaluate import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
