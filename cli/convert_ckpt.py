"""Convert weights: python cli/convert_ckpt.py --from DIR --to NEWDIR [--layout LAYOUT] ..."""

import sys

from mindrl.programs.convert import convert

if __name__ == "__main__":
    sys.exit(convert())
