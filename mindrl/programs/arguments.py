"""Shared argparse helpers of all programs: the parser and the value types."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from mindrl.observability.units import GIB
from mindrl.programs.version import version_line

MOST_RANKS = 4096
_LETTERS = {"tp": "t", "pp": "p", "vpp": "v", "ep": "e", "cp": "c", "etp": "t of ffn"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sub-command of `mindrl plan`."""

    summary: str
    """Its line in the list of all plans."""
    about: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Takes the parsed options; returns the exit code."""


def parser_of(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return the parser of a program, with examples at the end of its help."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_line())
    return parser


def count(text: str, most: int = 1 << 20) -> int:
    """Parse an integer from 1 to `most`."""
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} must be 1 to {most}")
    return value


def counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated integers from 1."""
    return tuple(count(part) for part in text.split(","))


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def gib(text: str) -> int:
    """Parse a number of GiB above 0; returns bytes."""
    return int(positive(text) * GIB)


def add_layers_per_chunk(parser: argparse.ArgumentParser, of: str) -> None:
    """Add the option for an uneven distribution of layers."""
    parser.add_argument(
        "--layers-per-chunk",
        type=counts,
        metavar="N,N,...",
        help=f"layers of each pipeline stage of {of}, or of each of its p x v chunks, "
        "where they are not even",
    )


def written_keys(where: str) -> dict[str, str]:
    """Return by layout field how an error names it: its letter in `where`, or its option."""
    keys = {name: f"{where} {letter}" for name, letter in _LETTERS.items()}
    return keys | {"layers_per_chunk": "--layers-per-chunk", "backend": where}
