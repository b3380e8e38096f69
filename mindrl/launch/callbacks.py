"""What a program that trains from Python does with the metrics of each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from mindrl.errors import StopRequestedError
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
    """A tracker that shows each record to functions; what one raises ends the run."""

    functions: Sequence[Callback] = ()
    stopped_behind: int | None = None
    """The step behind which one of them has asked to stop."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Show one record to each."""
        stop = partial(self._stop, step)
        view = StepView(step=step, metrics=MappingProxyType(metrics), stop=stop)
        for function in self.functions:
            function(view)

    def close(self) -> None:
        """Show nothing more."""

    def heed(self) -> None:
        """Raise where one of them has asked to stop.

        Raises:
            StopRequestedError: Between two calls of the workers.
        """
        if self.stopped_behind is not None:
            raise StopRequestedError(f"a callback asked to stop behind step {self.stopped_behind}")

    def _stop(self, step: int) -> None:
        if self.stopped_behind is None:
            self.stopped_behind = step
