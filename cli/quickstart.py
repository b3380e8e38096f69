"""Make a tiny model and its data, and train on them: python cli/quickstart.py [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("quickstart")
