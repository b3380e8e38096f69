"""A signal that comes while a program is still being imported ends it as one that comes later.

It imports nothing but what Python has loaded anyway, so that it can come first.
"""

import os
import signal
from types import FrameType

_INTERRUPTED = 130
"""Exit code of a program that a signal has stopped; `exits` imports too much to be asked."""


def end_at_sigterm() -> None:
    """End this process at SIGTERM with words and code 130, until a program takes the signal."""

    def end(number: int, _frame: FrameType | None) -> None:
        os.write(2, f"error: stopped by {signal.Signals(number).name}\n".encode())
        os._exit(_INTERRUPTED)

    signal.signal(signal.SIGTERM, end)
