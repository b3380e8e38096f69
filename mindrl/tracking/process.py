"""A tracker in a separate process: its run never waits for it.

The run sends it no data: the process reads the file of metrics.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from mindrl.errors import OutputError
from mindrl.observability.logs import tail
from mindrl.observability.metrics import Metrics
from mindrl.observability.output_files import output_errors
from mindrl.observability.regular_files import read_regular
from mindrl.platform.guard import import_paths
from mindrl.tracking.job import KILLED, TrackerJob, TrackerState

_PROGRAM = """\
import sys
sys.path[:] = sys.argv[2:]
from mindrl.tracking.child import hand_on
hand_on(sys.argv[1])
"""


class ProcessTracker:
    """Manages the process of a tracker, with the interface of a tracker."""

    def __init__(self, job: TrackerJob, log: Path) -> None:
        """Start it.

        Raises:
            OutputError: A file in the run folder cannot be written.
        """
        self.job, self.output, self.is_late = job, log, False
        self.run_status = KILLED
        """End status of the run; set before `close`."""
        paths = import_paths()
        command = [sys.executable, "-c", _PROGRAM, str(job.place), *paths]
        with output_errors(log):
            Path(job.folder).mkdir(parents=True, exist_ok=True)
            job.write()
            if not job.goes_on:
                TrackerState.forget(job.folder)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                # A separate session, which Ctrl-C does not reach.
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        """Check that the process runs; it reads the metrics itself.

        Raises:
            OutputError: It has ended.
        """
        if self.process.poll() is not None:
            raise OutputError(self._problem())

    def close(self) -> None:
        """Let the process finish the remaining records; kill it if that takes too long.

        Raises:
            OutputError: It did not finish all.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(self.run_status.encode())
            self.process.stdin.close()
        try:
            self.process.wait(self.job.timeout_seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if code := self.process.returncode:
            self.is_late = -code in (signal.SIGKILL, signal.SIGALRM)
            raise OutputError(self._problem())

    def outcome(self) -> dict[str, object]:
        """Return the location of the metrics, and the number of missed records."""
        state = TrackerState.of(self.job.folder)
        return {
            "place": state.place,
            "kept": state.taken,
            "missed": self._missed(state),
            "problem": self._problem() if self.process.returncode else None,
        }

    def _missed(self, state: TrackerState) -> int:
        try:
            return read_regular(Path(self.job.metrics)).count(b"\n") - state.taken
        except OSError:
            return 0

    def _problem(self) -> str:
        state, seconds = TrackerState.of(self.job.folder), self.job.timeout_seconds
        limit = f"{seconds} s (rl_config.tracking.timeout_seconds)"
        if self.is_late:
            said = f"had not received {self._missed(state)} record(s) {limit} after the end"
        elif self.process.returncode == -signal.SIGALRM:
            said = f"has not responded for {limit}"
        else:
            said = f"has failed: {state.problem or tail(self.output, lines=1)}"
        return f"the tracker {self.job.name} {said}; see {self.output}"
