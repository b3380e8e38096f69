"""The rows of a JSONL or Parquet file, and what stands in their columns."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import datasets
from datasets.exceptions import DatasetGenerationError

from mindrl.config.finding import did_you_mean
from mindrl.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One row of a data file."""

    place: str
    """For messages: file and line, or file and row."""
    values: dict[str, Any]
    """Column name to value."""


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file, whose suffix says its format: .jsonl or .parquet.

    Raises:
        DataError: The file is missing, unreadable, of another format, or malformed.
    """
    file = Path(path)
    reader = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"data file {path}: suffix {file.suffix!r}; needed .jsonl or .parquet")
    if not file.exists():
        raise DataError(f"data file {path}: no such file")
    if not file.is_file():
        raise DataError(f"data file {path}: not a file")
    try:
        yield from reader(file)
    except OSError as error:
        raise DataError(f"data file {path}: cannot be read ({error.strerror or error})") from error


def _read_jsonl(file: Path) -> Iterator[Row]:
    """Yield one row per line that is not blank.

    The JSON reader of `datasets` is not used: it loses line numbers, turns text that
    looks like a date into a timestamp, and rounds whole numbers above 2**63.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if content.strip():
                place = f"{file}:{number}"
                yield Row(place, _parse_object(place, content))


def _parse_object(place: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} of the line is not UTF-8 ({error.reason})"
        raise DataError(f"{place}: {wrong}") from error
    except json.JSONDecodeError as error:
        wrong = f"{error.msg} at character {error.pos + 1} of the line"
        raise DataError(f"{place}: not JSON: {wrong}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: a {type(value).__name__}; needed a JSON object with columns")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _read_parquet(file: Path) -> Iterator[Row]:
    # The cache of `datasets` goes by name and time stamp; a fresh one cannot be stale.
    with tempfile.TemporaryDirectory() as cache, _no_progress_bars():
        try:
            table = datasets.Dataset.from_parquet(str(file), cache_dir=cache, keep_in_memory=True)
        except (DatasetGenerationError, ValueError, NotImplementedError) as error:
            cause = error.__cause__ or error
            raise DataError(f"data file {file}: not a Parquet file ({cause})") from error
    for index, values in enumerate(table):
        yield Row(f"{file}, row {index} counted from 0", values)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    were_on = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_on:
            datasets.enable_progress_bars()


def column_of(row: Row, column: str, field: str) -> tuple[str, Any]:
    """Return the place of a value, for messages, and the value."""
    if column in row.values:
        return f"{row.place}: column {column!r}", row.values[column]
    hint = did_you_mean(column, row.values)
    found = ", ".join(row.values) or "none"
    raise DataError(f"{row.place}: no column {field}={column!r}; found: {found}{hint}")


def shown(value: Any) -> str:
    """Quote a value as JSON, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
