"""Where the metrics of each step are kept: JSON lines and TensorBoard."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from torch.utils.tensorboard import SummaryWriter

from mindrl.observability.json_lines import JsonLinesFile
from mindrl.observability.metrics import Metrics
from mindrl.observability.output_errors import output_errors


class Tracker(Protocol):
    """A place that keeps metrics."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of one step."""

    def close(self) -> None:
        """Write out what is held back and release the place."""


class JsonlTracker:
    """Write one line `{"step": ..., name: value, ...}` per call; NaN and inf become null.

    Raises:
        OutputError: from any method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = JsonLinesFile(path)

    def log(self, step: int, metrics: Metrics) -> None:
        """Append one line, whole even if the process is killed right after."""
        assert "step" not in metrics, "the name 'step' is taken by the step itself"
        self._file.append({"step": step, **metrics})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorboardTracker:
    """Write TensorBoard scalars into an event file of the directory.

    Raises:
        OutputError: from any method, if the event file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with output_errors(directory):
            self._writer = SummaryWriter(log_dir=str(directory))

    def log(self, step: int, metrics: Metrics) -> None:
        """Write one scalar per name, and flush, so that a running step shows at once."""
        with output_errors(self._directory):
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        with output_errors(self._directory):
            self._writer.close()


class Trackers:
    """Hand the same metrics to several trackers, and close all of them at the end."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of one step in every tracker."""
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def close(self) -> None:
        """Close every tracker, even if one of them fails to."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
