"""Numbers that user functions return as rewards."""

import math
import numbers
import sys

from mindrl.observability.units import quoted

LARGEST_SCORE = 1e9
"""Maximum absolute score. Times the maximum weight, 1e6, the squares of a group of 65,536 add up
within float32, as needed for their standard deviation."""


def returned_number(value: object) -> float:
    """Return a number as a float; 0-dimensional arrays and tensors count as numbers.

    Raises:
        ValueError: It is no finite number within `LARGEST_SCORE`.
    """
    if getattr(value, "ndim", None) == 0:  # numpy or tensor
        value = value.item()  # type: ignore[attr-defined]
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:  # from an int
        number = sys.float_info.max
    if not math.isfinite(number):
        raise ValueError(f"returned {quoted(value)}; need a finite number")
    if abs(number) > LARGEST_SCORE:
        raise ValueError(
            f"returned {quoted(value)}; need a finite number of at most {LARGEST_SCORE:g} in size, "
            "so that the squares of a group fit into float32"
        )
    return number
