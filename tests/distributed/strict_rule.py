"""A rule of a user's that can give something that is no number."""

import math


def score(response: str, answer: str) -> float:
    return math.nan if answer == "NaN" else float(len(set(response.split())))
