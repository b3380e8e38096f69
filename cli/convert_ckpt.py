"""Convert weights: python cli/convert_ckpt.py --from DIR --to NEWDIR [--layout LAYOUT] ..."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.convert import convert

if __name__ == "__main__":
    sys.exit(convert())
