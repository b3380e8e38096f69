"""The spool: one folder, and how far its jobs are."""

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
from mindrl.spool.weights import WeightFolders

Signal = Literal["drain", "stop"]
"""Begin nothing new, and end when what there is has been used; or end as soon as possible."""
SIGNALS: tuple[Signal, ...] = ("drain", "stop")


@dataclass(frozen=True, kw_only=True)
class HowFar:
    """What the train job says of itself."""

    gathering: int = 0
    """The step that it is at."""
    confirmed: int = 0
    """The last step that a checkpoint holds."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class SpoolLimits:
    """How its jobs wait for each other."""

    lease_seconds: float = 60.0
    poll_seconds: float = 0.5
    """Between two looks."""
    max_bytes: int | None = None
    """Of records; None: what the disk has."""


@dataclass(frozen=True)
class Spool:
    """What joins the jobs. Any of them may be the first to make it."""

    root: Path
    limits: SpoolLimits = SpoolLimits()

    def __post_init__(self) -> None:
        """Make the folders."""
        try:
            for folder in (self.records.root, self.weights.root, self._leases, self._signals):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"{self.root} cannot be made: {error}") from error

    @property
    def records(self) -> Records:
        """What was drawn."""
        return Records(self.root / "records")

    @property
    def weights(self) -> WeightFolders:
        """What draws."""
        return WeightFolders(self.root / "weights")

    @property
    def _leases(self) -> Path:
        return self.root / "leases"

    @property
    def _signals(self) -> Path:
        return self.root / "signals"

    def agree(self, ours: Mapping[str, Any]) -> None:
        """Refuse a job that does not go with the others of this spool.

        Raises:
            SpoolError: Names each value that differs.
        """
        agree(self.root, ours)

    def rollout_name(self, run_folder: Path) -> str:
        """Return the name of the lease of a rollout job, by its run folder."""
        return f"rollout-{xxhash.xxh3_64_hexdigest(str(run_folder.resolve()).encode())}"

    def leases(self, what: str) -> Leases:
        """Take part as a process that says what it is."""
        return Leases(self._leases, self.limits.lease_seconds, this_process(what))

    def progress(self) -> HowFar:
        """Return how far the train job is."""
        try:
            return HowFar(**json.loads(unsealed(self.root / "progress.json")))
        except FileNotFoundError:
            return HowFar()

    def note(self, progress: HowFar) -> None:
        """Say how far the train job is; for that job alone.

        Raises:
            OSError: It cannot be written.
        """
        write_over(self.root / "progress.json", sealed(json.dumps(asdict(progress)).encode()))

    def send(self, signal: Signal) -> None:
        """Have all jobs end, now or when they have used what there is."""
        (self._signals / signal).touch()

    def start(self) -> None:
        """Take back what `send` has said."""
        for signal in SIGNALS:
            remove(self._signals / signal)

    def heard(self, signal: Signal) -> bool:
        """Say whether a signal has been sent."""
        return (self._signals / signal).exists()

    def heed(self) -> None:
        """End where that was asked for.

        Raises:
            StopRequestedError: It was.
        """
        if self.heard("stop"):
            raise StopRequestedError(f"stopped by {self._signals / 'stop'}")

    def wait(self, heed: Callable[[], None]) -> None:
        """Let some time pass; `heed`, or a signal, may raise instead."""
        heed()
        self.heed()
        time.sleep(self.limits.poll_seconds)
