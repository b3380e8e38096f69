"""Write one page about runs: python cli/report.py RUN [RUN ...] [--output FILE]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.report import report

if __name__ == "__main__":
    sys.exit(report())
