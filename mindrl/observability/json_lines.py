"""JSON as mindrl writes it: strict, ASCII, one record a line where it is a log."""

import json
import math
import os
from collections.abc import Mapping

from mindrl.observability.appended_file import AppendedFile


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


class JsonLinesFile(AppendedFile):
    """A file that grows by one JSON record a line."""

    def append(self, *records: Mapping[str, object]) -> None:
        """Write each record as one line."""
        self.write("".join(f"{json_text(record)}\n" for record in records).encode("ascii"))
