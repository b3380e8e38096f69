"""Output files: strict JSON, complete records, and one wording of disk errors."""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from mindrl.errors import OutputError
from mindrl.observability.regular_files import open_regular

_UNFINISHED = ".tmp"
"""Suffix of a temporary file that is to replace another."""


@contextmanager
def output_errors(path: Path, need: str = "") -> Iterator[None]:
    """Convert an OSError in the body to an OutputError with the path and the requirement."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise OutputError(f"{message}; {need}" if need else message) from error


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the body to an OutputError with the path, unless a file is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror or error}") from error


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return `value` as JSON text, with null for NaN and inf, which JSON cannot represent.

    Paths become strings. ASCII only, so that a prompt or response cannot send control characters to
    a terminal that prints the file.
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


def json_line(values: Mapping[str, object], *, allow_nan: bool = True) -> str:
    """Return a data row as a line of JSON.

    Halves of characters, which UTF-8 cannot have, stay escaped.

    Raises:
        TypeError: A value is no JSON.
        ValueError: A value is NaN or inf, and `allow_nan` is False.
    """
    text = json.dumps(values, ensure_ascii=False, allow_nan=allow_nan)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(values)
    return f"{text}\n"


def write_json_atomically(path: Path, mapping: Mapping[str, object]) -> None:
    """Write the mapping atomically: a reader, or a crash, finds the old file or the new one.

    Raises:
        OutputError: if the file cannot be written; the old file is kept.
    """
    replace_file(path, (json_text(mapping, indent=2) + "\n").encode("ascii"))


def replace_file(path: Path, content: bytes | memoryview, *, waits: bool = True) -> None:
    """Write a file atomically: a reader, or a crash, finds the old file or the new one.

    With `waits=False` the file may be lost, or empty, if the machine itself fails.

    Raises:
        OutputError: if it cannot be written; the old file is kept.
    """
    with output_errors(path), _replacing(path, waits=waits) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path, *, waits: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces a file at the end of the body, as `replace_file`."""
    # Processes of two machines, or containers, may have the same number.
    temporary = path.with_name(f".{path.name}.{token_hex(4)}{_UNFINISHED}")
    try:
        with temporary.open("wb") as file:
            yield file
            if waits:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def forget_unfinished(folder: Path) -> None:
    """Remove temporary files that killed writers left in a folder.

    Raises:
        OutputError: if one cannot be removed.
    """
    with output_errors(folder):
        for path in folder.glob(f".*{_UNFINISHED}"):
            path.unlink()


class AppendedFile:
    """A file of complete records, readable after a kill or on a full disk.

    Each record is passed to the kernel before `write` returns. An existing file is continued.

    Raises:
        OutputError: from any method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: `close` must not retry what a full disk refused.
            self._file = path.open("a+b", buffering=0)

    def write(self, record: bytes) -> None:
        """Append a whole record, or nothing if there is no room for all of it."""
        with output_errors(self._path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(record) < len(record):
                with suppress(OSError):
                    self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        with output_errors(self._path):
            self._file.close()


class JsonLinesFile(AppendedFile):
    """A file of JSON records, one per line."""

    def append(self, *records: Mapping[str, object]) -> None:
        """Write each record as one line: all of them or none.

        An incomplete last line, which a killed writer left, is ended first.
        """
        lines = (f"{json_text(record)}\n" for record in records)
        self.write("".join([self._missing_end(), *lines]).encode("ascii"))

    def _missing_end(self) -> str:
        """Return the line feed that the last line lacks, or an empty text."""
        with output_errors(self._path):
            end = os.fstat(self._file.fileno()).st_size
            is_torn = end > 0 and os.pread(self._file.fileno(), 1, end - 1) != b"\n"
        return "\n" if is_torn else ""


def forget_later_steps(path: Path, step: int) -> list[int]:
    """Drop the records of later steps from a file of JSON lines.

    A line without an integer `step` is kept if a kept record follows it. The last line may be
    incomplete after a kill. A file without such lines is not written. One line at a time is in
    memory.

    Returns:
        The numbers, from 1, of the kept lines without a step.

    Raises:
        OutputError: if the file cannot be read or written.
    """
    with output_errors(path), suppress(FileNotFoundError):
        with open_regular(path) as file:
            steps = [step_of_record(line) for line in file]
            known = (at for at, of in enumerate(steps) if of is not None and of <= step)
            last = max(known, default=-1)
            kept = [at for at, of in enumerate(steps[: last + 1]) if of is None or of <= step]
            if len(kept) < len(steps):
                file.seek(0)
                _keep_lines(path, file, kept)
        return [number for number, at in enumerate(kept, start=1) if steps[at] is None]
    return []


def _keep_lines(path: Path, file: BinaryIO, kept: Sequence[int]) -> None:
    """Remove all lines but those with these indices, in order, from a file open for reading."""
    if kept == [*range(len(kept))]:
        end = sum(len(line) for line in islice(file, len(kept)))
        with path.open("rb+") as shortened:
            shortened.truncate(end)
            os.fsync(shortened.fileno())
        return
    chosen = {*kept}
    with _replacing(path) as new:
        new.writelines(line for at, line in enumerate(file) if at in chosen)


def step_record(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if it is damaged or has no integer `step`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_of_step = isinstance(record, dict) and type(record.get("step")) is int
    return record if is_of_step else None


def step_of_record(line: bytes) -> int | None:
    """Return the step of a JSON line; None if it is no record with an integer `step`."""
    record = step_record(line)
    return None if record is None else record["step"]
