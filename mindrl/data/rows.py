"""Read rows of data files of all formats, and values of their columns."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.table import table_cast

from mindrl.config.data_rules import SUFFIXES
from mindrl.config.finding import did_you_mean
from mindrl.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_FIELD = 1 << 30
"""Maximum length of a CSV field in characters."""
_PARQUET_ROWS = 256
"""Rows of a Parquet file that are read at a time; rows with pictures have megabytes."""


class Row(NamedTuple):
    """One row of a data file."""

    place: str
    """File and line, or file and row, for messages."""
    values: dict[str, Any]
    """Column name to value."""


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file; its suffix, one of `SUFFIXES`, selects the format.

    Raises:
        DataError: The file is missing, unreadable, of another format, or malformed.
    """
    file = Path(path)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"data file {path}: suffix {file.suffix!r}; needed {' or '.join(SUFFIXES)}")
    if not file.exists():
        raise DataError(f"data file {path}: no such file")
    if not file.is_file():
        raise DataError(f"data file {path}: not a file")
    try:
        yield from reader(file)
    except OSError as error:
        raise DataError(f"data file {path}: cannot read it ({error.strerror or error})") from error


def count_rows(path: str) -> int:
    """Return the number of rows of a file; raises as `read_rows`."""
    if Path(path).suffix.lower() != ".parquet":
        return sum(1 for _ in read_rows(path))
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"data file {path}: not a Parquet file ({error})") from error


def _read_jsonl(file: Path) -> Iterator[Row]:
    """Yield one row per line that is not blank.

    The JSON reader of `datasets` is not used: it loses line numbers, converts text that looks like
    a date to a timestamp, and rounds integers above 2**63.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if content.strip():
                place = f"{file}:{number}"
                yield Row(place, _columns(place, _parsed(place, content)))


def _read_json(file: Path) -> Iterator[Row]:
    """Yield the objects of a list; other files are read as one object per line."""
    content = file.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    if not content.lstrip().startswith(b"["):
        yield from _read_jsonl(file)
        return
    for index, value in enumerate(_parsed(f"data file {file}", content, "file")):
        place = f"{file}, row {index} counted from 0"
        yield Row(place, _columns(place, value))


def _parsed(place: str, content: bytes, what: str = "line") -> Any:
    try:
        return json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} of the {what} is not UTF-8 ({error.reason})"
        raise DataError(f"{place}: {wrong}") from error
    except json.JSONDecodeError as error:
        wrong = f"{error.msg} at character {error.colno} of line {error.lineno}"
        if what == "line":
            wrong = f"{error.msg} at character {error.pos + 1} of the line"
        if content.strip() in (b"{", b"["):
            wrong = "write one object per line; a list of objects needs the suffix .json"
        raise DataError(f"{place}: not JSON: {wrong}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error


def _columns(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{place}: a {type(value).__name__}; needed a JSON object with columns")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse a repeated key, whose first value would be lost."""
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, count),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {name!r} {count} times")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_csv(file: Path) -> Iterator[Row]:
    """Yield one row per record; every value is text.

    The CSV reader of `datasets` is not used: it loses line numbers, and turns 007 into 7.
    """
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from _records(file, csv.reader(lines, strict=True))
    except UnicodeDecodeError as error:
        raise DataError(f"data file {file}: not UTF-8 ({error.reason})") from error
    except csv.Error as error:
        raise DataError(f"data file {file}: not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _records(file: Path, records: Any) -> Iterator[Row]:
    """Yield the records after the header line; skip blank lines."""
    names: list[str] = next(records, [])
    _check_names(file, names)
    line = records.line_num + 1
    for values in records:
        place, line = f"{file}:{line}", records.line_num + 1
        if values and len(values) != len(names):
            need = f"the first line names {len(names)} columns"
            raise DataError(f"{place}: {len(values)} values; {need}")
        if values:
            yield Row(place, dict(zip(names, values, strict=True)))


def _read_parquet(file: Path) -> Iterator[Row]:
    try:
        for index, values in enumerate(chain.from_iterable(_parquet_tables(file))):
            yield Row(f"{file}, row {index} counted from 0", values)
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"data file {file}: not a Parquet file ({error})") from error


def _parquet_tables(file: Path) -> Iterator[datasets.Dataset]:
    """Yield a few rows at a time; `Dataset.from_parquet` would first copy the file to a disk."""
    with pq.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        _check_names(file, schema.names)
        features = datasets.Features(_undecoded(datasets.Features.from_arrow_schema(schema)))
        for batch in opened.iter_batches(_PARQUET_ROWS):
            table = table_cast(pa.Table.from_batches([batch], schema), features.arrow_schema)
            # A given fingerprint spares a hash of the table.
            yield datasets.Dataset(table, fingerprint=file.name)


def _check_names(file: Path, names: Sequence[str]) -> None:
    """Refuse a file in which two columns have the same name."""
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise DataError(f"data file {file}: {count} columns have the name {name!r}")


def _undecoded(feature: Any) -> Any:
    """Return a type in which media are bytes and paths; pictures are opened elsewhere."""
    match feature:
        case datasets.List() | datasets.LargeList():
            return type(feature)(_undecoded(feature.feature))
        case dict():
            return {name: _undecoded(each) for name, each in feature.items()}
    return replace(feature, decode=False) if hasattr(feature, "decode") else feature


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}


def column_of(row: Row, column: str, field: str) -> tuple[str, Any]:
    """Return the location of a value, for messages, and the value.

    Dots select nested columns, unless a column has that whole name.

    Raises:
        DataError: The column is missing; lists the existing ones.
    """
    where = f"{row.place}: column {column!r}"
    if column in row.values:
        return where, row.values[column]
    value: Any = row.values
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            known = [*islice(_names(row.values), _MOST_COLUMNS)]
            found = ", ".join(known) or "none"
            inside = [name for name in known if name.endswith(f".{column}")]
            hint = f"; did you mean {inside[0]!r}?" if inside else did_you_mean(column, known)
            raise DataError(f"{row.place}: no column {field}={column!r}; found: {found}{hint}")
        value = value[part]
    return where, value


_MOST_COLUMNS = 30
"""Maximum number of columns in a message."""


def _names(values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the names of columns; nested ones are joined by dots."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _names(value, f"{place}{name}.")
        else:
            yield f"{place}{name}"


def shown(value: Any) -> str:
    """Format a value as JSON, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
