"""Two jobs that a folder joins: python cli/job.py train|rollout|schedule ..."""

import sys

from mindrl.programs.job import job

if __name__ == "__main__":
    sys.exit(job())
