"""The spool: one folder, and the progress of its jobs."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.observability.holder import this_process
from mindrl.spool.files import remove, sealed, unsealed, write_over
from mindrl.spool.header import agree
from mindrl.spool.leases import Leases
from mindrl.spool.records import Records
from mindrl.spool.requests import Requests
from mindrl.spool.weights import WeightFolders

Signal = Literal["drain", "stop"]
"""`drain`: start nothing new, and end when existing data is used; `stop`: end as soon as
possible."""
SIGNALS: tuple[Signal, ...] = ("drain", "stop")


@dataclass(frozen=True, kw_only=True)
class SpoolProgress:
    """Progress of the train job."""

    gathering: int = 0
    """Current step."""
    awaited: int = 0
    """Position after the last prompt of the current step."""
    confirmed: int = 0
    """Last step that a checkpoint contains."""
    trained: int = 0
    """Position of the first prompt that later steps need responses to."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class SpoolLimits:
    """Limits of waiting between its jobs."""

    lease_seconds: float = 60.0
    poll_seconds: float = 0.5
    """Interval between checks."""
    max_bytes: int | None = None
    """Maximum size of the records; None: the free disk space."""


@dataclass(frozen=True)
class Spool:
    """The folder shared by the jobs. Any of them may create it."""

    root: Path
    limits: SpoolLimits = SpoolLimits()

    def __post_init__(self) -> None:
        """Create the folders."""
        try:
            exchanged = (self.requests.root, self.records.root, self.weights.root)
            for folder in (*exchanged, self._leases, self._signals):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"cannot create {self.root}: {error}") from error

    @property
    def requests(self) -> Requests:
        """Requests of the train job."""
        return Requests(self.root / "requests")

    @property
    def records(self) -> Records:
        """Generated data."""
        return Records(self.root / "records")

    @property
    def weights(self) -> WeightFolders:
        """Published weights."""
        return WeightFolders(self.root / "weights")

    @property
    def _leases(self) -> Path:
        return self.root / "leases"

    @property
    def _signals(self) -> Path:
        return self.root / "signals"

    def agree(self, ours: Mapping[str, Any]) -> str:
        """Refuse a job that does not match the others of this spool; return the spool's id.

        Raises:
            SpoolError: Names each value that differs.
        """
        return agree(self.root, ours)

    def rollout_name(self, run_folder: Path) -> str:
        """Return the name of a rollout job's lease, from its run folder."""
        return f"rollout-{xxhash.xxh3_64_hexdigest(str(run_folder.resolve()).encode())}"

    def leases(self, what: str) -> Leases:
        """Return the leases for this process, described as `what`."""
        return Leases(self._leases, self.limits.lease_seconds, this_process(what))

    def progress(self) -> SpoolProgress:
        """Return the progress of the train job."""
        try:
            return SpoolProgress(**json.loads(unsealed(self.root / "progress.json")))
        except FileNotFoundError:
            return SpoolProgress()

    def note(self, progress: SpoolProgress) -> None:
        """Record the progress of the train job; only that job calls it.

        Raises:
            OSError: It cannot be written.
        """
        write_over(self.root / "progress.json", sealed(json.dumps(asdict(progress)).encode()))

    def clear(self) -> None:
        """Remove all requests and records."""
        every = self.requests.prompts() + self.records.answered()
        end = max((each.end for each in every), default=0)
        self.requests.forget(end)
        self.records.forget(end)

    def send(self, signal: Signal) -> None:
        """Make all jobs end, now or after using the existing data."""
        (self._signals / signal).touch()

    def start(self) -> None:
        """Clear the signals of `send`."""
        for signal in SIGNALS:
            remove(self._signals / signal)

    def has_signal(self, signal: Signal) -> bool:
        """Return whether a signal has been sent."""
        return (self._signals / signal).exists()

    def check_interrupt(self) -> None:
        """Raise if a stop was requested.

        Raises:
            StopRequestedError: It was.
        """
        if self.has_signal("stop"):
            raise StopRequestedError(f"stopped by {self._signals / 'stop'}")

    def wait(self, check_interrupt: Callable[[], None]) -> None:
        """Wait for one interval; `check_interrupt` or a signal may raise instead."""
        check_interrupt()
        self.check_interrupt()
        time.sleep(self.limits.poll_seconds)
