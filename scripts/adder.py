"""An environment in TRL's form, for bench_tools.py: both trainers run this class."""


class Adder:
    """A calculator that pays for the right sum."""

    def reset(self, answer: str, **_: object) -> None:
        """Begin with a row."""
        self._answer, self._sums = int(answer), list[int]()

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self._sums.append(a + b)
        return a + b

    def get_reward(self) -> float:
        """Pay 1 for the right sum, less 0.1 for each call after the first."""
        return float(self._answer in self._sums) - 0.1 * max(0, len(self._sums) - 1)
