"""Show a run in the browser while it is running: python cli/watch.py RUN [RUN ...]."""

from in_environment import start

if __name__ == "__main__":
    start("watch")
