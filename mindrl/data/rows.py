"""Rows of a data file, each with the place it came from."""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from datasets.exceptions import DatasetGenerationError

from mindrl.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One example of a data file."""

    place: str
    """`file:line` for JSONL, `file, row N` for parquet; counted from 1."""
    prompt: Any
    answer: Any


def read_rows(path: str, *, prompt_column: str, answer_column: str) -> list[Row]:
    """Read two columns of a `.jsonl` or `.parquet` file.

    Raises:
        DataError: The file is missing, empty, of another kind or malformed, or a column is
            missing.
    """
    file = Path(path)
    if file.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{path}: need a .jsonl or .parquet file, found {file.suffix or 'neither'}")
    if not file.is_file():
        raise DataError(f"{path}: no such file")
    try:
        rows = list(_jsonl(file) if file.suffix == ".jsonl" else _parquet(file))
    except (OSError, UnicodeDecodeError, ValueError, DatasetGenerationError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path} has no rows")
    fields = {"prompt_column": prompt_column, "answer_column": answer_column}
    for place, values in rows:
        _check_columns(place, values, fields)
    return [
        Row(place=place, prompt=values[prompt_column], answer=values[answer_column])
        for place, values in rows
    ]


def _jsonl(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse line by line: a malformed line is named, and rows may have different columns."""
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{file}:{number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                raise DataError(f"{place} is not valid JSON: {error}") from None
            if not isinstance(values, dict):
                raise DataError(f"{place} must hold a JSON object, found {type(values).__name__}")
            yield place, values


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, values in enumerate(Dataset.from_parquet(str(file), keep_in_memory=True), start=1):
        yield f"{file}, row {number}", values


def _check_columns(place: str, values: dict[str, Any], fields: dict[str, str]) -> None:
    for field, column in fields.items():
        if column in values:
            continue
        near = difflib.get_close_matches(column, values, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DataError(
            f"{place} has no column {column} (megatron_training.{field}); "
            f"columns: {', '.join(values) or 'none'}{hint}"
        )
