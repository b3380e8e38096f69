"""Files as mindrl writes them: strict JSON, whole records, one wording where a disk refuses."""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mindrl.errors import OutputError
from mindrl.observability.regular_files import read_regular

_UNFINISHED = ".tmp"
"""How the name of a file ends that is to replace another."""


@contextmanager
def output_errors(path: Path, need: str = "") -> Iterator[None]:
    """Turn an OSError of the body into an OutputError that names the path and the need."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise OutputError(f"{message}; {need}" if need else message) from error


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return `value` as JSON text, with null for NaN and inf, which JSON does not have.

    Paths become strings. ASCII only, so that no prompt or response can reach the terminal
    of a person who prints the file.
    """
    return json.dumps(_nulled(value), allow_nan=False, default=os.fspath, indent=indent)


def _nulled(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _nulled(item) for key, item in value.items()}
        case list() | tuple():
            return [_nulled(item) for item in value]
        case _:
            return value


def write_json_atomically(path: Path, mapping: Mapping[str, object]) -> None:
    """Write the mapping so that a reader, or a crash, finds the old file or the new one whole.

    Raises:
        OutputError: if the file cannot be written; what was there before is kept.
    """
    replace_file(path, (json_text(mapping, indent=2) + "\n").encode("ascii"))


def replace_file(path: Path, content: bytes | memoryview, *, waits: bool = True) -> None:
    """Write a file so that a reader, or a crash, finds the old one or the new one whole.

    One that does not wait for the disk may be lost, or empty, if the machine itself fails.

    Raises:
        OutputError: if it cannot be written; what was there before is kept.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_UNFINISHED}")
    with output_errors(path):
        try:
            _write(temporary, content, waits=waits)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes | memoryview, *, waits: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        if waits:
            file.flush()
            os.fsync(file.fileno())


def forget_unfinished(folder: Path) -> None:
    """Remove what writers that were killed while they replaced files of a folder left there.

    Raises:
        OutputError: if one cannot be removed.
    """
    with output_errors(folder):
        for path in folder.glob(f".*{_UNFINISHED}"):
            path.unlink()


class AppendedFile:
    """A file that grows by whole records, and stays readable if the run is killed or the disk full.

    Each record is handed to the kernel before `write` returns. An existing file is continued.

    Raises:
        OutputError: from any method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk refused must not be tried again by `close`.
            self._file = path.open("ab", buffering=0)

    def write(self, record: bytes) -> None:
        """Append all of a record, or nothing where there is no room for all."""
        with output_errors(self._path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(record) < len(record):
                with suppress(OSError):
                    self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with output_errors(self._path):
            self._file.close()


class JsonLinesFile(AppendedFile):
    """A file that grows by one JSON record a line."""

    def append(self, *records: Mapping[str, object]) -> None:
        """Write each record as one line, all of them or none."""
        self.write("".join(f"{json_text(record)}\n" for record in records).encode("ascii"))


def forget_later_steps(path: Path, step: int) -> list[int]:
    """Drop the records of later steps from a file of JSON lines.

    A line without an integer `step` stays where a record that stays follows it. The last line may
    be half a record, of a run that was killed.

    Returns:
        The numbers, from 1, of the lines without a step that stay.

    Raises:
        OutputError: if the file cannot be read or written.
    """
    with output_errors(path), suppress(FileNotFoundError):
        lines = read_regular(path).splitlines(keepends=True)
        steps = [step_of_record(line) for line in lines]
        last = max((at for at, of in enumerate(steps) if of is not None and of <= step), default=-1)
        kept = [at for at, of in enumerate(steps[: last + 1]) if of is None or of <= step]
        replace_file(path, b"".join(lines[at] for at in kept))
        return [number for number, at in enumerate(kept, start=1) if steps[at] is None]
    return []


def step_of_record(line: bytes) -> int | None:
    """Return the step of a JSON line; None where the line is no record with an integer `step`."""
    try:
        found = json.loads(line)["step"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if type(found) is int else None
