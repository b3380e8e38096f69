"""Measure pass rates: python cli/pass_rates.py --data FILE --output FILE [key=value ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.pass_rates import pass_rates

if __name__ == "__main__":
    sys.exit(pass_rates())
