"""Handles a signal that arrives during the imports of a program like a later one.

It imports only modules that Python has loaded anyway, so it can be imported first.
"""

import os
import signal
from types import FrameType

_INTERRUPTED = 130
"""Exit code after a signal; importing it from `exits` would load too much."""


def end_at_sigterm() -> None:
    """End this process at SIGTERM with a message and code 130; a program replaces this later."""

    def end(number: int, _frame: FrameType | None) -> None:
        os.write(2, f"error: stopped by {signal.Signals(number).name}\n".encode())
        os._exit(_INTERRUPTED)

    signal.signal(signal.SIGTERM, end)
