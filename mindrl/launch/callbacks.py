"""What a program that trains from Python does with the metrics of each step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from mindrl.errors import CallbackError, InterruptedRunError, StopRequestedError
from mindrl.observability.metrics import Metrics


@dataclass(frozen=True)
class StepView:
    """What a callback sees: metrics of a step, or of an evaluation behind it."""

    step: int
    metrics: Mapping[str, float]
    """By the names of docs/reference/metrics.md; they cannot be changed."""
    stop: Callable[[], None]
    """Ends the run behind this step: what was learned is saved and exported first."""


Callback = Callable[[StepView], object]


@dataclass(eq=False)
class Callbacks:
    """A tracker that shows each record to functions.

    What one raises ends the run at the next `heed`: the record it was shown is written whole.
    """

    functions: Sequence[Callback] = ()
    stopped_behind: int | None = None
    """The step behind which one of them has asked to stop."""
    failed: CallbackError | None = None
    """What one of them raised; none is called from then on."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Show one record to each, unless one has failed."""
        stop = partial(self._stop, step)
        view = StepView(step=step, metrics=MappingProxyType(metrics), stop=stop)
        for function in self.functions:
            if self.failed is None:
                with self._noted(function, step):
                    function(view)

    def close(self) -> None:
        """Show nothing more."""

    def heed(self) -> None:
        """Raise, between two calls of the workers, where one of them has failed or asked to stop.

        Raises:
            CallbackError: One has failed; its exception is the cause.
            StopRequestedError: One has asked to stop.
        """
        self.require()
        if self.stopped_behind is not None:
            raise StopRequestedError(f"a callback asked to stop behind step {self.stopped_behind}")

    def require(self) -> None:
        """Raise where one of them has failed.

        Raises:
            CallbackError: Its exception is the cause.
        """
        if self.failed is not None:
            raise self.failed

    @contextmanager
    def _noted(self, function: Callback, step: int) -> Iterator[None]:
        """Keep what a function raises; a signal that arrives in it goes on."""
        try:
            yield
        except InterruptedRunError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by `require`, as the cause
            name = getattr(function, "__qualname__", type(function).__qualname__)
            said = f"the callback {name} raised {type(error).__name__} behind step {step}: {error}"
            self.failed = CallbackError(said)
            self.failed.__cause__ = error

    def _stop(self, step: int) -> None:
        if self.stopped_behind is None:
            self.stopped_behind = step
