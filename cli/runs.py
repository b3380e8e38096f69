"""List runs: python cli/runs.py [FOLDER ...]."""

from in_environment import start

if __name__ == "__main__":
    start("runs")
