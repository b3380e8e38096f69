"""What a reward function returned: numbers, or why they are none."""

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence

from mindrl.observability.units import quoted

NEED = "need a finite number"


def score_of(value: object) -> float:
    """Return a number as a score; verl's `{"score": number}`, and what has no dimension, are one.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, Mapping) and "score" in value:
        value = value["score"]
    if getattr(value, "ndim", None) == 0:  # of numpy, or a tensor
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    raise ValueError(f"returned {quoted(value)}; {NEED}")


def scores_of(value: object, count: int) -> Sequence[object]:
    """Return what a function of lists says of as many responses.

    Raises:
        ValueError: It is no list of as many.
    """
    if getattr(value, "ndim", None) == 1:  # of numpy, or a tensor
        value = value.tolist()  # type: ignore[attr-defined]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - of a foreign value
            f"returned {quoted(value)}; need a list of {count} numbers, for it takes lists"
        )
    if len(value) != count:
        raise ValueError(f"returned {len(value)} scores; need {count}, one for each response")
    return value


def hint_of(value: object, *, is_batch: bool) -> str:
    """Say what is probably behind a value that is no score; empty where nothing is known."""
    if inspect.iscoroutine(value):
        value.close()
        return "; it is a coroutine: make the function itself `async def`"
    if is_batch:
        return ""
    if value is None:
        return "; a way through the function ends without `return`"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; a function that takes lists names them: responses, references"
    return ""
