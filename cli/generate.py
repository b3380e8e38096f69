"""Ask a model, or that of a run: python cli/generate.py MODEL_OR_RUN [PROMPT]."""

import sys

from mindrl.programs.generate import generate

if __name__ == "__main__":
    sys.exit(generate())
