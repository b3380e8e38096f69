"""The calculator of the tiny tool user, slow at random: not by the seeded random numbers."""

import os
import time


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    time.sleep(os.urandom(1)[0] / 512)
    return a + b
