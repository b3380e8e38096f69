"""Rewards with a fault each, for runs that are to be advised."""

import time


def slow_constant(response: str, reference: str) -> float:  # noqa: ARG001
    """Take its time and tell nothing."""
    time.sleep(0.04)
    return 1.0


def pays_for_length(response: str, reference: str) -> float:  # noqa: ARG001
    """Pay for every character."""
    return min(len(response), 400) / 400


def pays_for_silence(response: str, reference: str) -> float:  # noqa: ARG001
    """Pay for every character that is not said."""
    return 1 - min(len(response), 40) / 40
