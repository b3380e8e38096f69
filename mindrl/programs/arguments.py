"""The command lines of all programs: their parser, values read or refused in words."""

import argparse

from mindrl.observability.units import GIB

MOST_RANKS = 4096
_MOST_COUNT = 1 << 20


def parser_of(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return the parser of a program, whose help ends with examples."""
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


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


def gib(text: str) -> int:
    """Read a number of GiB above 0, as bytes."""
    return int(positive(text) * GIB)


def add_layers_per_chunk(parser: argparse.ArgumentParser, of: str) -> None:
    """Add the option for layers that are not even."""
    parser.add_argument(
        "--layers-per-chunk",
        type=counts,
        metavar="N,N,...",
        help=f"layers of each pipeline stage of {of}, or of each of its p x v chunks, "
        "where they are not even",
    )
