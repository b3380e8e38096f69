"""Ctrl-C and SIGTERM end a run in order: everything is closed, and no process remains."""

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
_NOTICE = b"stopping after the current step and an export; a second signal stops at once\n"


@contextmanager
def signals_as_errors() -> Iterator[None]:
    """Raise InterruptedRunError in the main thread when one of the signals arrives.

    A second signal while the run shuts down is ignored: the shutdown is short, and aborting it
    would leave processes running.
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
    """Signals received by a run that stops at the next step."""

    def __init__(self) -> None:
        """Start without signals."""
        self.signals: list[signal.Signals] = []

    def is_requested(self) -> bool:
        """Return whether a signal has arrived."""
        return bool(self.signals)

    def __call__(self) -> None:
        """Raise StopRequestedError if a signal has arrived."""
        if self.signals:
            raise StopRequestedError(f"stopped by {self.signals[0].name}")


@contextmanager
def stop_requests(grace_seconds: float | None = None) -> Iterator[StopRequests]:
    """Treat the first signal as a request, which the block checks at suitable times.

    The next signal is handled as outside the block; this function sends it if the block runs longer
    than `grace_seconds` after the first one. If workers are lost after a request, the block ends
    with StopRequestedError, so that no new workers are started.

    Yields:
        A function that raises StopRequestedError after a signal.
    """
    requests = StopRequests()
    over = Timer(grace_seconds or 0, os.kill, (os.getpid(), signal.SIGTERM))
    over.daemon = True
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def give_back() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def request_stop(number: int, _frame: FrameType | None) -> None:
        requests.signals.append(signal.Signals(number))
        give_back()
        if grace_seconds is not None:
            over.start()
        # Not by print: the signal may have interrupted a print.
        with suppress(OSError):
            os.write(2, _NOTICE)

    for each in _SIGNALS:
        signal.signal(each, request_stop)
    try:
        yield requests
    except (WorkerDiedError, ReshardError) as error:
        if requests.signals:
            said = f"stopped by {requests.signals[0].name}; earlier checkpoints are kept: {error}"
            raise StopRequestedError(said) from error
        raise
    finally:
        over.cancel()
        give_back()


@contextmanager
def trace_requests(request: Callable[[], None]) -> Iterator[None]:
    """Call `request` on SIGUSR1; the program continues."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: request())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Unwrap an interrupt: Ray's compiled code wraps one that arrives while it waits."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, InterruptedRunError):
            raise error.__cause__ from None
        raise
