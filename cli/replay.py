"""Run one recorded step again and compare: python cli/replay.py RUN --step N [key=value ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.replay import replay

if __name__ == "__main__":
    sys.exit(replay())
