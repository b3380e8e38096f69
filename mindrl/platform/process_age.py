"""How old this process is."""

import time

import psutil


def seconds_since_start() -> float:
    """Return the seconds since this process was started, its own imports included."""
    return time.time() - psutil.Process().create_time()
