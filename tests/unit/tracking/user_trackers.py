"""User trackers, some of which behave badly."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from mindrl.observability.metrics import Metrics
from mindrl.tracking.job import TrackerJob, TrackerState


class FileTracker:
    """Appends a line for each record to a file, and says how often it was opened."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        self.id = f"{state.id or 'run'}+"
        self.place = f"{job.folder}/kept.txt"
        self.timeout = job.timeout_seconds

    def log(self, step: int, metrics: Metrics) -> None:
        with Path(self.place).open("a", encoding="utf-8") as file:
            file.write(f"{self.id} {step} {metrics}\n")

    def close(self) -> None:
        self.log(-1, {})


class Raises(FileTracker):
    """Takes a record, and then no more."""

    def log(self, step: int, metrics: Metrics) -> None:
        if step > 1:
            raise RuntimeError("quota \x1b[2J exceeded\nand more")
        super().log(step, metrics)


class Hangs(FileTracker):
    """Never comes back, whatever happens meanwhile: a thread that nobody ends is waited for."""

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        for deaf in (signal.SIGINT, signal.SIGTERM):
            signal.signal(deaf, signal.SIG_IGN)
        thread = threading.Thread(target=threading.Event().wait)
        thread.start()
        thread.join()


class HangsAtTheEnd(FileTracker):
    """Takes everything, and does not come back from the end."""

    def close(self) -> None:
        time.sleep(3600)


class SeesTheEnd(FileTracker):
    """Notes at its end how the run ended, and what the page of the run shows of that."""

    def __init__(self, job: TrackerJob, state: TrackerState) -> None:
        super().__init__(job, state)
        self.state, self.page = state, job.run_folder / "report.html"

    def close(self) -> None:
        page = self.page.read_text("utf-8")
        has_status = f'"status": "{self.state.run_status}"' in page
        Path(self.place).write_text(f"{self.state.run_status} {has_status}\n", "utf-8")


class Slow(FileTracker):
    """Takes 0.4 s for a record."""

    def log(self, step: int, metrics: Metrics) -> None:
        time.sleep(0.4)
        super().log(step, metrics)


class Leaves(FileTracker):
    """Ends its program as if all were well."""

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        sys.exit(0)


class Dies(FileTracker):
    """Takes its process with it."""

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        os._exit(7)
