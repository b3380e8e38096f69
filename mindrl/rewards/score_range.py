"""The range of a reward function's scores, declared beside the function."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class ScoreRange(NamedTuple):
    """What a function scores at worst and at best."""

    lowest: float = 0.0
    highest: float = 1.0

    def share(self, score: float) -> float:
        """Return how far a score lies between the ends, from 0 to 1, also for one beyond them."""
        return min(max((score - self.lowest) / (self.highest - self.lowest), 0.0), 1.0)


def scores(lowest: float, highest: float) -> Callable[[FunctionT], FunctionT]:
    """Declare the range of the function below."""

    def declared(function: FunctionT) -> FunctionT:
        vars(function)["score_range"] = ScoreRange(lowest, highest)
        return function

    return declared


def score_range(function: Callable[..., object]) -> ScoreRange:
    """Return the attribute `score_range` of a function, or 0 to 1 where it declares none.

    Raises:
        ValueError: it is not two finite numbers, the lower one first.
    """
    match found := getattr(function, "score_range", ScoreRange()):
        case (int() | float() as lowest, int() | float() as highest) if (
            -math.inf < lowest < highest < math.inf
        ):
            return ScoreRange(float(lowest), float(highest))
        case _:
            raise ValueError(f"score_range={found!r}: need (lowest, highest), both finite")
