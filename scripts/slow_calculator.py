"""A calculator with a long tail of latencies, for scripts/bench_turns.py."""

import random
import time

LEAST_SECONDS = 0.02
MOST_SECONDS = 2.0


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    # Seeded for each conversation: equal runs wait equally long.
    time.sleep(min(MOST_SECONDS, LEAST_SECONDS * random.paretovariate(1.1)))
    return a + b
