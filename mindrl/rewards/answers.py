"""Compare the meaning of two answers with `math_verify`. Slow to import, because of sympy."""

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, MatrixExpr, Rational, Symbol, UnevaluatedExpr, expand

# math-verify logs whole answers, and warns that it runs without its own time limit.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# LaTeX only: for plain expressions math-verify calls sympy.parse_expr, which evaluates Python.
_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
_POINT = tuple(Rational(*each) for each in ((137, 100), (261, 100), (59, 100), (173, 50)))
"""Values of symbols at which scalars are compared; positive, so that roots are real."""
_CLEARLY = 1e-4
"""Smallest difference that proves two scalars near 0 unequal."""


@lru_cache(maxsize=4096)
def mean_the_same(found: str, reference: str) -> bool:
    """Return whether two answers are equal; cached, since samples of one prompt often repeat."""
    wanted, given = _parsed(reference), _parsed(found)
    if (answer := _same_scalar(wanted, given)) is not None:
        return answer
    return bool(verify(wanted, given, timeout_seconds=None))


def _same_scalar(wanted: list[Any], given: list[Any]) -> bool | None:
    """Return whether two scalars are equal if that is quick to see, else None.

    `math_verify` simplifies the difference of two scalars, which takes most of its time. Scalars
    that differ at one point are not equal; those that are the same when multiplied out are equal.
    """
    match wanted, given:
        case [Expr() as first, str(text)], [Expr() as second, str(other)] if text != other:
            pass
        case _:
            return None
    # `math_verify` has rules of its own for symbols, for matrices, and below for percentages.
    if any(isinstance(each, (Symbol, MatrixExpr)) for each in (first, second)):
        return None
    try:
        difference = first - second
        symbols = sorted(difference.free_symbols, key=str)
        if len(symbols) > len(_POINT) or difference.has(UnevaluatedExpr):
            return None
        point = dict(zip(symbols, _POINT, strict=False))
        value, size = difference.evalf(subs=point), abs(first.evalf(subs=point))
        # Numbers with a decimal point have 15 digits and are compared to six places.
        if value.is_number and value.is_finite and abs(value) > _CLEARLY * (1 + size):
            return False
        return True if symbols and expand(difference) == 0 else None
    except Exception:  # noqa: BLE001 - sympy raises any kind; `verify` then decides
        return None


@lru_cache(maxsize=4096)
def _parsed(answer: str) -> list[Any]:
    """Parse LaTeX to sympy objects; the normalised text is the fallback."""
    latex = rf"\boxed{{{answer}}}"
    if answer.endswith("%"):  # math-verify sees a percent sign only after the closing delimiter
        number = answer.removesuffix("%").removesuffix("\\").rstrip()
        latex = rf"${number}$\%"
    # Its own limit is SIGALRM, which works in a main thread only and counts nothing.
    expressions: list[Any] = parse(latex, extraction_config=_LATEX, parsing_timeout=None)
    return expressions
