"""Check a configuration: python cli/check.py --config-name NAME [key=value ...] [--json]."""

import sys

from mindrl.programs.check import check_config

if __name__ == "__main__":
    sys.exit(check_config())
