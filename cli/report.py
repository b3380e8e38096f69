"""Write one page about runs: python cli/report.py RUN [RUN ...] [--output FILE]."""

import sys

from mindrl.programs.report import report

if __name__ == "__main__":
    sys.exit(report())
