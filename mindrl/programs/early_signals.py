"""Handles signals that arrive during the imports of a program like later ones.

It imports only modules that Python has loaded anyway, so it can be imported first.
"""

import os
import signal
from types import FrameType

_INTERRUPTED = 130
"""Exit code after a signal; importing it from `exits` would load too much."""


def handle_early_signals() -> None:
    """End this process at SIGTERM with a message and code 130, and do nothing at SIGUSR1.

    A program replaces these handlers later: a run records its next step at SIGUSR1.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        os.write(2, f"error: stopped by {signal.Signals(number).name}\n".encode())
        os._exit(_INTERRUPTED)

    # Not SIG_IGN, which processes of the run would inherit.
    signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, end)
