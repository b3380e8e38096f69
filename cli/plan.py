"""Plan without running: python cli/plan.py reshard --model DIR --from LAYOUT --to LAYOUT ..."""

from in_environment import start

if __name__ == "__main__":
    start("plan")
