"""Input and state of a tracker's process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from mindrl.observability.output_files import write_json_atomically
from mindrl.observability.regular_files import read_regular_text
from mindrl.observability.trackers import Tracker

_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class TrackerJob:
    """Job of a tracker."""

    name: str
    """Name of a library, or of the user's function."""
    project: str
    experiment: str
    offline: bool
    timeout_seconds: int
    """Limit for a record, and for all remaining ones at the end."""
    goes_on: bool
    """Whether to continue the tracker's run of the stored state."""
    folder: str
    """Its own folder: its state, and offline data of a library."""
    metrics: str
    """The run's file of metrics."""
    config: Mapping[str, Any]
    """Configuration of the run, dotted."""
    sample_rows: int = 0
    """Samples per table; 0 sends no table and no report."""
    sample_interval: int = 10
    """Steps between two tables of training samples."""

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path(self.metrics).parent

    @property
    def place(self) -> Path:
        """File of the job."""
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
    """Progress of a tracker, from which the next one continues."""

    id: str | None = None
    """The library's id of the run; None before it is known."""
    place: str | None = None
    """Location of the run for the user."""
    step: int = -1
    """Step of the newest record that it has."""
    of_step: int = 0
    """Number of records of that step that it has."""
    taken: int = 0
    """Number of records that this process has finished."""
    problem: str | None = None
    """Error that ended it."""
    tables: dict[str, int] = field(default_factory=dict)
    """Newest step of which a table of samples was sent, by kind."""
    run_status: str | None = None
    """End status of the run, as in summary.json, or `killed`. None until it is set before
    `close`."""

    @classmethod
    def forget(cls, folder: str) -> None:
        """Remove the state, so that the next tracker starts from the beginning."""
        (Path(folder) / _STATE).unlink(missing_ok=True)

    @classmethod
    def of(cls, folder: str) -> "TrackerState":
        """Read the complete state, even while it is written; without a file, the initial state.

        Keys of another version are ignored.
        """
        try:
            found = json.loads(read_regular_text(Path(folder) / _STATE))
        except (OSError, ValueError):
            return cls()
        return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})

    def write(self, folder: str) -> None:
        """Write the state.

        Raises:
            OutputError: It cannot be written.
        """
        write_json_atomically(Path(folder) / _STATE, asdict(self))


KILLED = "killed"
"""Status of a run that ended without a summary."""


class OpenTracker(Tracker, Protocol):
    """A running tracker; its exceptions end it, but not the run."""

    id: str
    """The tracker's id of the run, passed again when the run continues."""
    place: str
    """Location of the run for the user."""
