"""Storage of the metrics of each step."""

from typing import Protocol

from mindrl.observability.metrics import Metrics
from mindrl.observability.output_files import JsonLinesFile


class JsonlTracker(JsonLinesFile):
    """Writes one line `{"step": ..., name: value, ...}` per call; NaN and inf become null."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Append one line, complete even if the process is killed right after."""
        assert "step" not in metrics, "the metric name 'step' is reserved"
        self.append({"step": step, **metrics})


class Tracker(Protocol):
    """Stores metrics."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Store the metrics of a step, or of an evaluation after it.

        Raises:
            OutputError: They cannot be stored.
        """

    def close(self) -> None:
        """Finish storing.

        Raises:
            OutputError: Pending metrics cannot be stored.
        """
