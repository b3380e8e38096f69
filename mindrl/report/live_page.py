"""The page of a run that goes on: written anew now and then, and for whoever watches."""

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
"""Between two writings."""
_SHARE = 0.01
"""Of the time of a run that its page may take."""


class LivePage:
    """Writes the page of a run into its folder, as a place that keeps the metrics of each step."""

    def __init__(self, folder: Path) -> None:
        """Begin; the first writing waits as long as the others."""
        self.folder = folder
        self.path = folder / PAGE
        self.due = time.monotonic() + LEAST_SECONDS
        self.state: RunState | None = None
        """What was read for the last writing; the next one reads what is new."""

    def log(self, step: int, metrics: Metrics) -> None:  # noqa: ARG002
        """Write the page anew if the last writing lies far enough back.

        Raises:
            OutputError: It cannot be written.
        """
        if time.monotonic() >= self.due:
            self.write()

    def write(self) -> None:
        """Write the page anew.

        Raises:
            OutputError: It cannot be written.
        """
        # Imported late: the page of a run that is over in a minute is written once.
        from mindrl.report.page import write_page  # noqa: PLC0415
        from mindrl.report.run_state import RunState  # noqa: PLC0415

        started = time.monotonic()
        try:
            self.state = self.state or RunState(self.folder)
            write_page(self.path, [self.state])
        except OutputError:
            raise
        except Exception as error:
            # A page is never worth a run.
            logger.exception("%s", self.path)
            raise OutputError(f"{self.path} cannot be written: {error!r}") from error
        spent = time.monotonic() - started
        self.due = time.monotonic() + max(LEAST_SECONDS, spent / _SHARE)

    def close(self) -> None:
        """Do nothing: what is still to be known of a run is its summary."""
