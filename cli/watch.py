"""Show a run in the browser while it goes on: python cli/watch.py RUN [RUN ...]."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.watch import watch

if __name__ == "__main__":
    sys.exit(watch())
