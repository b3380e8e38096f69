"""Check this machine before a run: python cli/doctor.py [--device KIND] [--json]."""

from in_environment import start

if __name__ == "__main__":
    start("doctor")
