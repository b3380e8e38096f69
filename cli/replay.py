"""Repeat a recorded step and compare: python cli/replay.py RUN --step N [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("replay")
