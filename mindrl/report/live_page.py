"""The page of a running run, rewritten at intervals."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mindrl.errors import OutputError
from mindrl.observability.metrics import Metrics

if TYPE_CHECKING:
    from mindrl.report.run_state import RunState

logger = logging.getLogger(__name__)

PAGE = "report.html"
LEAST_SECONDS = 60.0
"""Minimum time between two updates."""
_SHARE = 0.01
"""Maximum fraction of a run's time for its page."""


class LivePage:
    """Writes the page of a run into its folder, with the interface of a tracker."""

    def __init__(self, folder: Path) -> None:
        """Wait for a full interval before the first update."""
        self.folder = folder
        self.path = folder / PAGE
        self.due = time.monotonic() + LEAST_SECONDS
        self.state: RunState | None = None
        """State at the last update; the next one reads only what is new."""

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        """Rewrite the page if the last update is old enough.

        Raises:
            OutputError: It cannot be written.
        """
        if time.monotonic() >= self.due:
            self.write()

    def write(self) -> None:
        """Rewrite the page.

        Raises:
            OutputError: It cannot be written.
        """
        # Imported late: the page of a short run is written once.
        from mindrl.report.page import write_page  # noqa: PLC0415
        from mindrl.report.run_state import RunState  # noqa: PLC0415

        started = time.monotonic()
        try:
            self.state = self.state or RunState(self.folder)
            write_page(self.path, [self.state])
        except OutputError:
            raise
        except Exception as error:
            # An error of the page must not end the run.
            logger.exception("%s", self.path)
            raise OutputError(f"{self.path} cannot be written: {error!r}") from error
        spent = time.monotonic() - started
        self.due = time.monotonic() + max(LEAST_SECONDS, spent / _SHARE)

    def close(self) -> None:
        """Do nothing: the summary is written later, and the page after it."""
