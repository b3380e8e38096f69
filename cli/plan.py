"""Plan without running: python cli/plan.py reshard --model DIR --from LAYOUT --to LAYOUT ..."""

import sys

from mindrl.programs.plan import plan

if __name__ == "__main__":
    sys.exit(plan())
