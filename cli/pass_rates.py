"""Measure pass rates: python cli/pass_rates.py --data FILE --output FILE [key=value ...]."""

from in_environment import start

if __name__ == "__main__":
    start("pass-rates")
