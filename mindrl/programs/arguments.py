"""The command line of a program: its parser, its exit code and the types of its values."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

from mindrl.errors import ConfigError
from mindrl.observability.units import GIB
from mindrl.programs.exits import exit_code

MOST_RANKS = 4096
_SMALLEST, _LARGEST = 1e-12, 1e12
"""Bounds of numbers other than 0: products and quotients of a few of them do not overflow."""
_LETTERS = {"tp": "t", "pp": "p", "vpp": "v", "ep": "e", "cp": "c", "etp": "t of ffn"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program with options: call it with its name to run it on `sys.argv`."""

    about: str
    examples: str
    """Text at the end of its help."""
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Returns the exit code."""
    parse: Callable[[argparse.ArgumentParser], argparse.Namespace] = (
        argparse.ArgumentParser.parse_intermixed_args
    )
    shows_all: Callable[[argparse.Namespace], bool] = lambda _: False
    """Whether more than the first ten reasons of an error are printed."""
    bad_input: tuple[type[Exception], ...] = ()
    """Errors with exit code 2, besides `ConfigError`."""

    def parser(self, name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser(
            prog=name,
            description=self.about,
            epilog=self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_options(parser)
        return parser

    def __call__(self, name: str) -> int:
        """Parse the command line and run the program; returns the exit code."""
        options = self.parse(self.parser(name))
        return exit_code(
            lambda: self.run(options), *self.bad_input, shows_all=self.shows_all(options)
        )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the changes to a configuration, which may stand anywhere on the command line."""
    text = "changes, as for a training program"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=text)


def refuse_unless(
    is_on: object, mode: str, options: argparse.Namespace, names: Sequence[str]
) -> None:
    """Refuse options that have an effect only in a mode, such as `with --live`, if it is not on.

    An option is given unless it is None, False or an empty list, so none may have another default.

    Raises:
        ConfigError: One of them is given.
    """
    for name in () if is_on else names:
        value = getattr(options, name.lstrip("-").replace("-", "_"))
        if value is not None and value is not False and value != []:
            raise ConfigError(f"{name} has an effect only {mode}; leave it out")


def count(text: str, most: int = 1 << 20) -> int:
    """Parse an integer from 1 to `most`."""
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} must be 1 to {most}")
    return value


def port_number(text: str) -> int:
    """Parse the number of a port."""
    return count(text, most=65535)


def counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated integers from 1."""
    return tuple(count(part) for part in text.split(","))


def positive(text: str, least: float = _SMALLEST, most: float = _LARGEST) -> float:
    """Parse a number above 0, from `least` to `most`."""
    if (value := _finite(text, least, most)) <= 0:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def not_negative(text: str) -> float:
    """Parse 0, or a number from 1e-12 to 1e12."""
    if (value := _finite(text, _SMALLEST, _LARGEST)) < 0:
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return value


def _finite(text: str, least: float, most: float) -> float:
    """Return a finite number, or -1 for another text; refuse one that is too small or too large."""
    value = -1.0
    with suppress(ValueError):
        value = float(text)
    if not isfinite(value):
        return -1.0
    if value > 0 and not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} must be between {least:g} and {most:g}")
    return value


def gib(text: str) -> int:
    """Parse a number of GiB, from 0.0001 to 1e6; returns bytes, whose sums fit 64 bits."""
    return int(positive(text, 1e-4, 1e6) * GIB)


def add_layers_per_chunk(parser: argparse.ArgumentParser, of: str) -> None:
    """Add the option for an uneven distribution of layers."""
    parser.add_argument(
        "--layers-per-chunk",
        type=counts,
        metavar="N,N,...",
        help=f"layers of each pipeline stage of {of}, or of each of its p x v chunks "
        "(default: equal numbers)",
    )


def written_keys(where: str) -> dict[str, str]:
    """Return by layout field how an error names it: its letter in `where`, or its option."""
    keys = {name: f"{where} {letter}" for name, letter in _LETTERS.items()}
    return keys | {"layers_per_chunk": "--layers-per-chunk", "backend": where}
