"""JSON as mindrl writes it: strict, ASCII, one record a line where it is a log."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from mindrl.observability.output_errors import output_errors


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


class JsonLinesFile:
    """A file that grows by one JSON record a line, and stays readable if the run is killed.

    Each line goes to the kernel whole, before `append` returns. An existing file is continued.

    Raises:
        OutputError: from any method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")

    def append(self, *records: Mapping[str, object]) -> None:
        """Write each record as one line."""
        lines = "".join(f"{json_text(record)}\n" for record in records)
        with output_errors(self._path):
            self._file.write(lines.encode("ascii"))
            self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with output_errors(self._path):
            self._file.close()
