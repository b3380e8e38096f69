"""Select the cases of a test that run with every change; the others run at night."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def most_at_night(examples: int) -> int:
    """Return the number of cases of a property: all at night, a fourth with a change."""
    return examples if os.environ.get("MINDRL_NIGHTLY") else examples // 4


def at_night_but(every_change: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters; nightly ones are marked.

    A tuple is one case of several parameters.
    """
    cases = list(cases)
    assert all(case in cases for case in every_change), "a case that there is not"
    return [case if case in every_change else _marked(case) for case in cases]


def _marked(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
