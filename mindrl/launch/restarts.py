"""Decide whether a run restarts after losing a worker, and record it."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mindrl.errors import MindrlError, OutputError
from mindrl.observability.metrics import Metrics
from mindrl.observability.output_files import JsonLinesFile


@dataclass(kw_only=True)
class Restarts:
    """Counts the faults of a run; each is reported and written to a file."""

    most: int
    """Maximum consecutive restarts from one checkpoint."""
    path: Path
    tell: Callable[[str], None]
    behind: int
    """Step of the last attempt's checkpoint; 0 is the beginning."""
    in_a_row: int = 0
    """Restarts from it."""
    count: int = 0
    """Number of all restarts."""
    began: float = field(default_factory=time.monotonic)
    """Time when the workers were lost, or first started."""

    def after(self, error: MindrlError, done: int, *, behind: int) -> None:
        """Record a fault, and the checkpoint from which the run can continue.

        Args:
            error: What ended the attempt.
            done: Number of recorded steps.
            behind: Step of the newest complete checkpoint; 0 if there is none.

        Raises:
            MindrlError: The fault itself, if it has occurred too often.
        """
        self.in_a_row = self.in_a_row + 1 if behind == self.behind else 1
        self.behind = behind
        if self.in_a_row > self.most:
            if self.most:
                self.tell(f"rl_config.max_restarts={self.most} after step {behind} is reached")
            raise error
        self.count, self.began = self.count + 1, time.monotonic()
        self.tell(f"warning: {error}")
        self.tell(f"restart {self.count}: step {done + 1} was lost; continuing after step {behind}")
        with suppress(OutputError):
            log = JsonLinesFile(self.path)
            log.append(
                {
                    "time": time.time(),
                    "step": done + 1,
                    "resumed_behind": behind,
                    "kind": type(error).__name__,
                    "error": str(error),
                }
            )
            log.close()

    def metrics(self) -> Metrics:
        """Return the time until the workers could train."""
        return {"seconds/start": time.monotonic() - self.began}
