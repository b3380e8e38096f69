"""Convert weights: python cli/convert_ckpt.py --from DIR --to NEWDIR [--layout LAYOUT] ..."""

import sys

from mindrl.launch.convert_program import convert

if __name__ == "__main__":
    sys.exit(convert())
