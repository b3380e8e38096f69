"""List runs: python cli/runs.py [FOLDER ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.runs import runs

if __name__ == "__main__":
    sys.exit(runs())
