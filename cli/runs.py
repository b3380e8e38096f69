"""List runs: python cli/runs.py [FOLDER ...]."""

import sys

from mindrl.programs.runs import runs

if __name__ == "__main__":
    sys.exit(runs())
