"""Check a configuration: python cli/check.py --config-name NAME [key=value ...] [--json]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.check import check_config

if __name__ == "__main__":
    sys.exit(check_config())
