"""Write an HTML page about runs: python cli/report.py RUN [RUN ...] [--output FILE]."""

from in_environment import start

if __name__ == "__main__":
    start("report")
