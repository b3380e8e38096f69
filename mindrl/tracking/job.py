"""What the process of a tracker is told, and what it tells."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mindrl.observability.output_files import write_json_atomically
from mindrl.observability.regular_files import read_regular_text
from mindrl.observability.trackers import Tracker

_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class TrackerJob:
    """What a tracker is to do."""

    name: str
    """That of a library, or of a function of the user's."""
    project: str
    experiment: str
    offline: bool
    timeout_seconds: int
    """For a record, and for all that is left at the end."""
    goes_on: bool
    """The run there is the one that it has the state of."""
    folder: str
    """Its own: its state, and what a library keeps that works offline."""
    metrics: str
    """The file of the run."""
    config: Mapping[str, Any]
    """Of the run, dotted."""
    sample_rows: int = 0
    """Samples in a table; 0 sends no table and no report."""
    sample_interval: int = 10
    """Steps between two tables of training samples."""

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run."""
        return Path(self.metrics).parent

    @property
    def place(self) -> Path:
        """Where the job lies as a file."""
        return Path(self.folder) / "job.json"

    def write(self) -> None:
        """Write it for the process.

        Raises:
            OutputError: It cannot be written.
        """
        write_json_atomically(self.place, asdict(self))

    @classmethod
    def read(cls, place: Path) -> "TrackerJob":
        """Read it in the process."""
        return cls(**json.loads(read_regular_text(place)))


@dataclass(kw_only=True)
class TrackerState:
    """How far a tracker is; what comes after it goes on from there."""

    id: str | None = None
    """By which the library knows the run; None before it does."""
    place: str | None = None
    """Where a person finds the run."""
    step: int = -1
    """Of the newest record that it has."""
    of_step: int = 0
    """How many records of that step it has."""
    taken: int = 0
    """Records of the file that this process is done with."""
    problem: str | None = None
    """What ended it."""
    tables: dict[str, int] = field(default_factory=dict)
    """Newest step of which a table of samples was sent, by kind."""
    run_status: str | None = None
    """How the run ended, as in summary.json, or `killed`. It is set before `close`, and None until
    then."""

    @classmethod
    def forget(cls, folder: str) -> None:
        """Let the next tracker begin anew."""
        (Path(folder) / _STATE).unlink(missing_ok=True)

    @classmethod
    def of(cls, folder: str) -> "TrackerState":
        """Read it, whole, also while it is written; without a file it is the beginning."""
        try:
            return cls(**json.loads(read_regular_text(Path(folder) / _STATE)))
        except (OSError, ValueError):
            return cls()

    def write(self, folder: str) -> None:
        """Write it.

        Raises:
            OutputError: It cannot be written.
        """
        write_json_atomically(Path(folder) / _STATE, asdict(self))


KILLED = "killed"
"""Status of a run that ended without a summary."""


class OpenTracker(Tracker, Protocol):
    """A tracker that is there; whatever it raises ends it, and not the run."""

    id: str
    """By which it knows the run: it is given again when the run goes on."""
    place: str
    """Where a person finds the run."""
