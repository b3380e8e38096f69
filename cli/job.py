"""Train and roll out in jobs that share a folder: python cli/job.py train|rollout|schedule ..."""

from in_environment import start

if __name__ == "__main__":
    start("job")
