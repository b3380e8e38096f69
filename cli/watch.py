"""Show a run in the browser while it goes on: python cli/watch.py RUN [RUN ...]."""

import sys

from mindrl.programs.watch import watch

if __name__ == "__main__":
    sys.exit(watch())
