"""Two jobs that a folder joins: python cli/job.py train|rollout|schedule ..."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.job import job

if __name__ == "__main__":
    sys.exit(job())
