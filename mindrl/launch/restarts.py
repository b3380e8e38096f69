"""Whether a run that has lost a worker begins once more, and the record of that."""

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
    """Counts the faults of a run; each is told of, and is a line of a file."""

    most: int
    """Restarts in a row behind one checkpoint."""
    path: Path
    tell: Callable[[str], None]
    behind: int
    """Step of the checkpoint that the last attempt went on from; 0 is the beginning."""
    in_a_row: int = 0
    """Restarts behind it."""
    count: int = 0
    """Of all restarts."""
    began: float = field(default_factory=time.monotonic)
    """When the workers were lost, or are started for the first time."""

    def after(self, error: MindrlError, done: int, *, behind: int) -> None:
        """Take note of a fault, and of the checkpoint that the run can go on from.

        Args:
            error: What ended the attempt.
            done: Steps on record.
            behind: Step of the newest whole checkpoint; 0 where there is none yet.

        Raises:
            MindrlError: The fault itself, where it has come too often.
        """
        self.in_a_row = self.in_a_row + 1 if behind == self.behind else 1
        self.behind = behind
        if self.in_a_row > self.most:
            if self.most:
                self.tell(f"rl_config.max_restarts={self.most} behind step {behind} are used up")
            raise error
        self.count, self.began = self.count + 1, time.monotonic()
        self.tell(f"warning: {error}")
        self.tell(f"restart {self.count}: step {done + 1} was lost, on from behind step {behind}")
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
        """Return how long it took until the workers could train."""
        return {"seconds/start": time.monotonic() - self.began}
