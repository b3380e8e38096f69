"""Create a tiny model and its data: python cli/tiny.py --output FOLDER."""

from in_environment import start

if __name__ == "__main__":
    start("tiny")
