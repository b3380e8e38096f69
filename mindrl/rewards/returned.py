"""Convert results of reward functions to scores, or explain why they are invalid."""

import inspect
import math
from collections.abc import Mapping, Sequence

from mindrl.config.returned_number import returned_number
from mindrl.observability.units import quoted
from mindrl.rewards.scores import Graded


def score_of(value: object) -> float | Graded:
    """Return a number as a score; 0-dimensional arrays and tensors count as numbers.

    A mapping with `score` is verl's: its `acc`, if given, is the accuracy of the response.

    Raises:
        ValueError: It is no finite number within `LARGEST_SCORE`, or `acc` is not from 0 to 1.
    """
    if not isinstance(value, Mapping) or "score" not in value:
        return returned_number(value)
    score, right = returned_number(value["score"]), value.get("acc")
    if right is None:
        return score
    try:
        accuracy = returned_number(right)
    except ValueError:
        accuracy = math.nan
    if not 0 <= accuracy <= 1:
        raise ValueError(f"returned 'acc': {quoted(right)}; need a number from 0 to 1, or a bool")
    return Graded(score=score, accuracy=accuracy)


def scores_of(value: object, count: int) -> Sequence[object]:
    """Return the scores from a function of lists.

    Raises:
        ValueError: It is not a list of `count` values.
    """
    if getattr(value, "ndim", None) == 1:  # numpy or tensor
        value = value.tolist()  # type: ignore[attr-defined]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - of a foreign value
            f"returned {quoted(value)}; need a list of {count} numbers, because it takes lists"
        )
    if len(value) != count:
        raise ValueError(f"returned {len(value)} scores; need {count}, one for each response")
    return value


def hint_of(value: object, *, is_batch: bool) -> str:
    """Return a hint about the probable cause of an invalid result; may be empty."""
    if inspect.iscoroutine(value):
        value.close()
        return "; it is a coroutine: make the function itself `async def`"
    if is_batch:
        return ""
    if value is None:
        return "; a path through the function ends without `return`"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; a function that takes lists needs the parameters responses, references"
    return ""
