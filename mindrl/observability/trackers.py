"""Where the metrics of each step are kept: JSON lines and TensorBoard."""

import os
import socket
import time
from pathlib import Path
from typing import Protocol

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from mindrl.observability.appended_file import AppendedFile
from mindrl.observability.json_lines import JsonLinesFile
from mindrl.observability.metrics import Metrics


class Tracker(Protocol):
    """A place that keeps metrics."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Keep the metrics of one step."""

    def close(self) -> None:
        """Release the place."""


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
    """Write TensorBoard scalars into an event file of the directory, one record a step.

    TensorBoard's own writer does it in a thread, which a full disk ends with a traceback on the
    terminal.

    Raises:
        OutputError: from any method, if the event file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendedFile(directory / name)
        self._write(Event(file_version="brain.Event:2"))

    def log(self, step: int, metrics: Metrics) -> None:
        """Write one scalar per name."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the event file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        RecordWriter(self._file).write(event.SerializeToString())
