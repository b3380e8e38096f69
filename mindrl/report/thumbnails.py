"""Thumbnails of the pictures of samples, as addresses that hold their content."""

import base64
import re
from collections.abc import Iterable
from pathlib import Path

from mindrl.observability.regular_files import read_regular
from mindrl.report.run_record import Line
from mindrl.report.stored_rows import pieces_of

MOST_BYTES = 4 << 20
"""Maximum total bytes of the addresses of a page, or of an answer of its server."""
_MOST_OF_ONE = 96 << 10
_PNG = b"\x89PNG\r\n\x1a\n"
_NAME = re.compile(r"[0-9a-f]{16}")


def thumbnails_of(run: Path, rows: Iterable[Line]) -> dict[str, str]:
    """Return the thumbnails of the pictures of samples by name; those that are missing are omitted.

    A name is the number of a picture, so it names a file of the run's folder only.
    """
    found: dict[str, str] = {}
    left = MOST_BYTES
    shown = (part for row in rows for part in (row, *pieces_of(row)))
    for name in dict.fromkeys(name for part in shown for name in picture_names(part)):
        try:
            content = read_regular(run / "pictures" / f"{name}.png")
        except OSError:
            continue
        if not content.startswith(_PNG) or len(content) > _MOST_OF_ONE:
            continue
        address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        left -= len(address)
        if left < 0:
            break
        found[name] = address
    return found


def picture_names(row: Line) -> list[str]:
    """Return the names of the pictures of a sample's prompt, or of a piece of a conversation."""
    given = row.get("pictures")
    names = given if isinstance(given, list) else []
    return [each for each in names if isinstance(each, str) and _NAME.fullmatch(each)]


def prompt_key(row: Line) -> str:
    """Return the key of a sample's prompt: its text and its pictures."""
    return " ".join([row["prompt"], *picture_names(row)])
