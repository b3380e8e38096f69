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
    notify: Callable[[str], None]
    checkpoint_step: int
    """Step of the last attempt's checkpoint; 0 is the beginning."""
    in_a_row: int = 0
    """Restarts from that checkpoint."""
    count: int = 0
    """Number of all restarts."""
    began: float = field(default_factory=time.monotonic)
    """Time when the workers were lost, or first started."""

    def after(self, error: MindrlError, done: int, *, checkpoint_step: int) -> None:
        """Record a fault, and the checkpoint from which the run can continue.

        Args:
            error: What ended the attempt.
            done: Number of recorded steps.
            checkpoint_step: Step of the newest complete checkpoint; 0 if there is none.

        Raises:
            MindrlError: The fault itself, if it has occurred too often.
        """
        self.in_a_row = self.in_a_row + 1 if checkpoint_step == self.checkpoint_step else 1
        self.checkpoint_step = checkpoint_step
        if self.in_a_row > self.most:
            if self.most:
                self.notify(
                    f"rl_config.max_restarts={self.most} after step {checkpoint_step} is reached"
                )
            raise error
        self.count, self.began = self.count + 1, time.monotonic()
        self.notify(f"warning: {error}")
        self.notify(
            f"restart {self.count}: step {done + 1} was lost; "
            f"continuing after step {checkpoint_step}"
        )
        with suppress(OutputError):
            log = JsonLinesFile(self.path)
            log.append(
                {
                    "time": time.time(),
                    "step": done + 1,
                    "resumed_behind": checkpoint_step,
                    "kind": type(error).__name__,
                    "error": str(error),
                }
            )
            log.close()

    def metrics(self) -> Metrics:
        """Return the time until the workers could train."""
        return {"seconds/start": time.monotonic() - self.began}
