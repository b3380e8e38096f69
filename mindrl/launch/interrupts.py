"""Ctrl-C and SIGTERM end a run in order: everything is closed, nothing is left behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mindrl.errors import InterruptedRunError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_as_errors() -> Iterator[None]:
    """Raise InterruptedRunError in the main thread where one of the signals arrives.

    A second signal while the run winds down is ignored: winding down is short, and cutting it
    off would leave processes behind.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise InterruptedRunError(f"stopped by {signal.Signals(number).name}")

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Raise an interrupt as itself: Ray's compiled code wraps one that comes while it waits."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, InterruptedRunError):
            raise error.__cause__ from None
        raise
