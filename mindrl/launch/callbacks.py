"""Callbacks of a program that trains from Python."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from mindrl.errors import CallbackError, InterruptedRunError, StopRequestedError
from mindrl.observability.metrics import Metrics


@dataclass(frozen=True)
class StepView:
    """Argument of a callback: metrics of a step, or of an evaluation after it."""

    step: int
    metrics: Mapping[str, float]
    """By the names of docs/reference/metrics.md; read-only."""
    stop: Callable[[], None]
    """Ends the run after this step, once the trained models are saved and exported."""


Callback = Callable[[StepView], object]


@dataclass(eq=False)
class Callbacks:
    """A tracker that passes each record to functions.

    If a function raises, the current record is still written completely; the run ends before the
    next call of the workers.
    """

    functions: Sequence[Callback] = ()
    stopped_after: int | None = None
    """Step after which a function has asked to stop."""
    failed: CallbackError | None = None
    """Error of the first function that failed; none is called afterwards."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Pass one record to each function, unless one has failed."""
        stop = partial(self._stop, step)
        view = StepView(step=step, metrics=MappingProxyType(metrics), stop=stop)
        for function in self.functions:
            if self.failed is None:
                with self._noted(function, step):
                    function(view)

    def close(self) -> None:
        """Do nothing."""

    def check_interrupt(self) -> None:
        """Raise, between two calls of the workers, if a function has failed or asked to stop.

        Raises:
            CallbackError: A function has failed; its exception is the cause.
            StopRequestedError: A function has asked to stop.
        """
        self.require()
        if self.stopped_after is not None:
            raise StopRequestedError(f"a callback stopped the run after step {self.stopped_after}")

    def require(self) -> None:
        """Raise if a function has failed.

        Raises:
            CallbackError: Its exception is the cause.
        """
        if self.failed is not None:
            raise self.failed

    @contextmanager
    def _noted(self, function: Callback, step: int) -> Iterator[None]:
        """Store an exception of a function; propagate an interrupt."""
        try:
            yield
        except InterruptedRunError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by `require`, as the cause
            name = getattr(function, "__qualname__", type(function).__qualname__)
            said = f"the callback {name} raised {type(error).__name__} after step {step}: {error}"
            self.failed = CallbackError(said)
            self.failed.__cause__ = error

    def _stop(self, step: int) -> None:
        if self.stopped_after is None:
            self.stopped_after = step
