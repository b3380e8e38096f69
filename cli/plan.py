"""Plan without running: python cli/plan.py reshard --model DIR --from LAYOUT --to LAYOUT ..."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.plan import plan

if __name__ == "__main__":
    sys.exit(plan())
