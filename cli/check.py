"""Check a configuration: python cli/check.py --config-name NAME [key=value ...] [--json]."""

from in_environment import start

if __name__ == "__main__":
    start("check")
