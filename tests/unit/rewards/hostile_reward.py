"""A reward function that harms its process in the way that the response names."""

import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal


def hang_deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def leave_orphans() -> float:
    """Start a shell with a child in a session of its own, whose parent ends at once."""
    subprocess.run(["setsid", "sh", "-c", "sh -c 'sleep 1000; true' & exit"], check=True)
    return 1.0


def hang_with_children() -> None:
    """Start two more, one of which has a session of its own, and wait for ever."""
    leave_orphans()
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)


def fail(text: str) -> None:
    raise ValueError(text)


def print_100_mb() -> float:
    os.write(1, b"x" * 50_000_000)
    sys.stderr.write("x" * 50_000_000)
    return 1.0


HARMS: dict[str, Callable[[], object]] = {
    "hang": lambda: time.sleep(1000),
    "hang in C": lambda: re.match("(a+)+$", "a" * 64 + "b"),
    "hang deaf": hang_deaf,
    "leave orphans": leave_orphans,
    "hang with children": hang_with_children,
    "exit 3": lambda: os._exit(3),
    "exit 0": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": lambda: fail("long " * 1000),
    "sys.exit": lambda: sys.exit(0),
    "allocate 8 GiB": lambda: float(len(bytearray(8 * 2**30))),
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "text": lambda: "1.0",
    "decimal": lambda: Decimal(1),
    "print 100 MB": print_100_mb,
}


def obey(response: str, reference: str) -> object:
    """Do the harm of that name; otherwise the reference is the score."""
    return HARMS[response]() if response in HARMS else float(reference)


obey.score_range = (-1.0, 100.0)
