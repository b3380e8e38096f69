"""Run one recorded step again and compare: python cli/replay.py RUN --step N [key=value ...]."""

import sys

from mindrl.programs.replay import replay

if __name__ == "__main__":
    sys.exit(replay())
