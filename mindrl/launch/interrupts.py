"""Ctrl-C and SIGTERM end a run in order: everything is closed, nothing is left behind."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from types import FrameType

from mindrl.errors import (
    InterruptedRunError,
    ReshardError,
    StopRequestedError,
    WorkerDiedError,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ASKED = b"stopping: what runs is finished and the model exported; once more stops at once\n"


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


class StopRequests:
    """The signals that have asked a run to stop."""

    def __init__(self) -> None:
        """Begin with none."""
        self.signals: list[signal.Signals] = []

    def is_asked(self) -> bool:
        """Return whether a signal has come."""
        return bool(self.signals)

    def __call__(self) -> None:
        """Raise StopRequestedError once a signal has come."""
        if self.signals:
            raise StopRequestedError(f"stopped by {self.signals[0].name}")


@contextmanager
def stop_requests(grace_seconds: float | None = None) -> Iterator[StopRequests]:
    """Take the first signal for a request, which the block meets at a good moment.

    The next signal does what one does outside the block; it is sent from here where the block lasts
    longer than `grace_seconds` from the first one on. Where workers are lost after a request, the
    block ends with StopRequestedError, so that no new workers are started.

    Yields:
        Raises StopRequestedError once a signal has come.
    """
    requests = StopRequests()
    over = Timer(grace_seconds or 0, os.kill, (os.getpid(), signal.SIGTERM))
    over.daemon = True
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def give_back() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def ask(number: int, _frame: FrameType | None) -> None:
        requests.signals.append(signal.Signals(number))
        give_back()
        if grace_seconds is not None:
            over.start()
        # Not by print: the signal may have come in the middle of one.
        with suppress(OSError):
            os.write(2, _ASKED)

    for each in _SIGNALS:
        signal.signal(each, ask)
    try:
        yield requests
    except (WorkerDiedError, ReshardError) as error:
        if requests.signals:
            said = f"stopped by {requests.signals[0].name}, with what was saved before: {error}"
            raise StopRequestedError(said) from error
        raise
    finally:
        over.cancel()
        give_back()


@contextmanager
def trace_requests(ask: Callable[[], None]) -> Iterator[None]:
    """Take SIGUSR1 for the wish to see what the run does; it goes on as before."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: ask())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Raise an interrupt as itself: Ray's compiled code wraps one that comes while it waits."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, InterruptedRunError):
            raise error.__cause__ from None
        raise
