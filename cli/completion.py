"""Print a script that completes commands: python cli/completion.py bash > FILE."""

from in_environment import start

if __name__ == "__main__":
    start("completion")
