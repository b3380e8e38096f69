"""Compare the meaning of two answers with `math_verify`. Slow to import, because of sympy."""

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

# math-verify logs whole answers, and warns that it runs without its own time limit.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# LaTeX only: for plain expressions math-verify calls sympy.parse_expr, which evaluates Python.
_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)


@lru_cache(maxsize=4096)
def mean_the_same(found: str, reference: str) -> bool:
    """Return whether two answers are equal; cached, since samples of one prompt often repeat."""
    return bool(verify(_parsed(reference), _parsed(found), timeout_seconds=None))


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
