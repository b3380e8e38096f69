"""Parts of the suite and of the planted faults, for a machine without time for all at once."""

import argparse
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Part(NamedTuple):
    """One of several parts of a list."""

    number: int
    """From 1."""
    count: int

    @classmethod
    def read(cls, text: str) -> "Part":
        """Read `K/N`.

        Raises:
            ArgumentTypeError: It is something else.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text}: need K/N with 1 <= K <= N, for example 1/4")
        return cls(int(number), int(count))

    def of(self, things: list[T]) -> list[T]:
        """Return every Nth thing, from the Kth."""
        return things[self.number - 1 :: self.count]
