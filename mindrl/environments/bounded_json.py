"""JSON texts of policies and agents, which may be nested without end."""

import json
from collections.abc import Callable
from typing import Any

_MOST_LEVELS = 50
"""Python copies values by recursion, and raises at about 300 levels."""
_TOO_DEEP = f"nested more than {_MOST_LEVELS} levels deep"


def bounded_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text; `parse_constant` as for `json.loads`.

    Raises:
        ValueError: The text is no JSON, or nests objects and lists more than 50 levels deep.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    nested = _inside([value])
    for _ in range(_MOST_LEVELS):
        nested = [each for outer in nested for each in _inside(outer)]
    if nested:
        raise ValueError(_TOO_DEEP)
    return value


def _inside(value: Any) -> list[Any]:
    """Return the objects and lists that an object or a list has as values."""
    values = value.values() if isinstance(value, dict) else value
    return [each for each in values if isinstance(each, dict | list)]
