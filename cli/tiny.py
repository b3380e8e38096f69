"""Make a tiny model with its data: python cli/tiny.py --output FOLDER."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.tiny import tiny

if __name__ == "__main__":
    sys.exit(tiny())
