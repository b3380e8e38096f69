"""Select the cases of a test that run with every change; the others run at night."""

import os
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations, cycle, product
from typing import Any, TypeVar

import pytest

from mindrl.layouts.layout import TrainLayout

T = TypeVar("T")
CUTS = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp")
UPDATES = 5 if os.environ.get("MINDRL_NIGHTLY") else 3
"""Taken in each layout. A wrong gradient shows in the first, wrong moments in the second."""


def most_at_night(examples: int) -> int:
    """Return the number of cases of a property: all at night, a tenth with a change."""
    return examples if os.environ.get("MINDRL_NIGHTLY") else examples // 10


def crossed(firsts: Iterable[Any], seconds: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return all pairs at night; in the short suite each second value, the first ones in turn."""
    if os.environ.get("MINDRL_NIGHTLY"):
        return [*product(firsts, seconds)]
    return [*zip(cycle(firsts), seconds, strict=False)]


def few_unless_night(few: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Return the few cases of the short suite, at night all of them."""
    return [*every] if os.environ.get("MINDRL_NIGHTLY") else [*few]


def half_unless_night(every: Mapping[str, T]) -> dict[str, T]:
    """Return every second of many like cases in the short suite, at night all of them."""
    return dict(few_unless_night([*every.items()][::2], every.items()))


def at_night_but(every_change: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters; nightly ones are marked.

    A tuple is one case of several parameters.
    """
    cases = list(cases)
    assert all(case in cases for case in every_change), "a case that there is not"
    return [case if case in every_change else _marked(case) for case in cases]


def chosen_names(request: pytest.FixtureRequest) -> set[str]:
    """Return the values of `name` in the cases of the request's file that are to run."""
    ours = [item for item in request.session.items if item.path == request.path]
    return {
        item.callspec.params["name"]
        for item in ours
        if hasattr(item, "callspec") and "name" in item.callspec.params
    }


def cut_pairs(layouts: Iterable[TrainLayout]) -> set[tuple[str, str]]:
    """Return the pairs of dimensions that at least one layout cuts together.

    A fault in a layout is nearly always one of a single cut or of two together, so cases that
    cover all pairs stand for all layouts.
    """
    found: set[tuple[str, str]] = set()
    for layout in layouts:
        found |= {*combinations([name for name in CUTS if getattr(layout, name) > 1], 2)}
    return found


def _marked(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
