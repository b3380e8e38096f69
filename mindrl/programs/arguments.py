"""Values of the command line, as argparse takes a type: read, or refused in words."""

import argparse

_MOST_COUNT = 1 << 20


def count(text: str) -> int:
    """Read a whole number from 1."""
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= _MOST_COUNT:
        raise argparse.ArgumentTypeError(f"{text} must be 1 to {_MOST_COUNT}")
    return value


def counts(text: str) -> tuple[int, ...]:
    """Read whole numbers from 1, with commas between them."""
    return tuple(count(part) for part in text.split(","))


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value
