"""Metrics as TensorBoard scalars. A separate module, because the library loads slowly."""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from mindrl.observability.metrics import Metrics
from mindrl.observability.output_files import AppendedFile


class TensorboardTracker(AppendedFile):
    """Writes TensorBoard scalars into an event file of the directory, one record per step.

    TensorBoard's own writer uses a thread, which ends on a full disk with a traceback on the
    terminal.
    """

    def __init__(self, directory: Path, first_step: int = 0) -> None:
        """Start a file; it supersedes earlier files from `first_step` on."""
        goes_on = any(directory.glob("events.*"))
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(directory / name)
        self._event(Event(file_version="brain.Event:2"))
        if goes_on:
            start = SessionLog(status=SessionLog.START)
            self._event(Event(step=first_step, session_log=start))

    def log(self, step: int, metrics: Metrics) -> None:
        """Write one scalar per name."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._event(Event(step=step, summary=Summary(value=values)))

    def _event(self, event: Event) -> None:
        event.wall_time = time.time()
        RecordWriter(self).write(event.SerializeToString())
