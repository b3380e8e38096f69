"""Scalars that are compared quickly get the verdict of `math_verify`."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import verify
from nightly import most_at_night

from mindrl.rewards.answers import _parsed, _same_scalar

NUMBERS = (
    *("12", "-12", "12.0", "0.5", r"\frac{1}{2}", r"\frac{24}{2}", r"\sqrt{144}", r"\sqrt{2}"),
    *(r"\frac{1}{3}", "0.333333", "0.3333", "10^{25}", "1.0*10^{25}", r"\pi", "3.141593"),
    *(r"50\%", "50", r"\infty", r"\frac{1}{0}", "1,234", "2^{10}", "1024.0000001", "7i", "e"),
)
OF_LETTERS = ("x", "y", "x^2", "(x+1)^2", "x^2+2x+1", "x^2+2x+2", "xy", "yx", "f(x)", "f(x)+1")
EQUAL_BY_RULES = (r"\sin(x)^2+\cos(x)^2+x", "1+x", r"\sqrt{x^2}+1", r"\frac{x^2-1}{x-1}")
POLYNOMIALS = st.lists(st.integers(-9, 9), min_size=2, max_size=3)


def verdict(reference: str, answer: str) -> tuple[bool | None, bool]:
    """Return the quick verdict and that of the library."""
    parsed = _parsed(reference), _parsed(answer)
    return _same_scalar(*parsed), verify(*parsed, timeout_seconds=None)


@pytest.mark.parametrize("texts", [NUMBERS, OF_LETTERS, (*EQUAL_BY_RULES, "x+1", "x-1")])
def test_of_all_pairs_the_quick_verdict_is_that_of_the_library(texts: tuple[str, ...]) -> None:
    quick = [(pair, *verdict(*pair)) for pair in product(texts, repeat=2)]
    assert [each for each in quick if each[1] not in {None, each[2]}] == []
    # Without quick verdicts the line before would hold too.
    assert sum(each[1] is False for each in quick) >= len(texts)


@settings(max_examples=most_at_night(400))
@given(POLYNOMIALS, POLYNOMIALS, st.booleans())
def test_polynomials_are_compared_by_their_coefficients(
    roots: list[int], others: list[int], is_same: bool
) -> None:
    factors = "".join(f"(x-({root}))" for root in roots)
    coefficients = [1]
    for root in roots if is_same else others:
        coefficients = [
            first - root * second
            for first, second in zip([*coefficients, 0], [0, *coefficients], strict=True)
        ]
    powers = range(len(coefficients) - 1, -1, -1)
    written = "+".join(f"({each})x^{{{at}}}" for each, at in zip(coefficients, powers, strict=True))
    assert _same_scalar(_parsed(factors), _parsed(written)) in {
        is_same or sorted(roots) == sorted(others),
        None,
    }


def test_a_verdict_is_quick_for_wrong_roots_and_for_polynomials() -> None:
    root, polynomial = r"\frac{3}{5}-\sqrt{2}", "(x+3)(x+9)"
    assert verdict(root, r"\frac{3}{7}+\sqrt{6}") == (False, False)
    assert verdict(polynomial, "x^2+12x+27") == (True, True)
    assert verdict(polynomial, "x^2+11x+27") == (False, False)
