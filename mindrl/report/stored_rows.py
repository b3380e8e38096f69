"""The newest stored responses of a run, which are shown token by token."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mindrl.observability.checked_parquet import read_checked_parquet
from mindrl.observability.picture_names import picture_name
from mindrl.observability.regular_files import open_regular, read_regular
from mindrl.report.run_record import Line

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 8000
"""Maximum characters of a text; of a longer one both ends are shown."""
_LEAST_CHARACTERS = 400
"""Lower bound of the limit for a piece of a long conversation."""
MOST_TOKEN_ROWS = 256
"""Maximum responses that are shown token by token: those of the last steps."""

Pieces = Callable[[Sequence[int]], list[str]]
"""Returns the text of each token."""

_NAME = re.compile(r"step-(\d+)\.parquet")
_PART = "reward/"
_BY_TOKEN = ("logprobs", "rollout_logprobs", "advantages")
_DIGITS = 4


class StoredRows:
    """Selects which steps of a folder of stored responses are shown; reads them on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[int, int] = {}
        """Number of shown responses, by step."""
        self._paths: dict[int, Path] = {}
        self._rows: dict[Path, tuple[int, int]] = {}
        """For each file its time in nanoseconds and its rows; 0 rows if it cannot be read."""

    def update(self) -> None:
        """Look for new and removed files."""
        paths = sorted(self.folder.glob("step-*.parquet"), reverse=True)
        named = [(int(found[1]), path) for path in paths if (found := _NAME.fullmatch(path.name))]
        self._paths = dict(named)
        self._rows = {path: self._rows[path] for path in paths if path in self._rows}
        self.counts = dict(self._shown())

    def rows(self, step: int, pieces: Pieces | None) -> list[Line]:
        """Read the responses of a step; empty if its file is missing or damaged."""
        if step not in self.counts:
            return []
        path = self._paths[step]
        try:
            table = read_checked_parquet(read_regular(path)).slice(0, self.counts[step])
            return [_row_of(each, pieces) for each in table.to_pylist()]
        except FileNotFoundError:
            pass  # removed meanwhile, for example as too old
        except (OSError, ValueError) as error:
            self._leave_out(path, error)
        del self.counts[step]
        return []

    def _shown(self) -> Iterator[tuple[int, int]]:
        total = 0
        for step, path in self._paths.items():
            count = self._count(path)
            if total and total + count > MOST_TOKEN_ROWS:
                return
            if count:
                yield step, min(count, MOST_TOKEN_ROWS)
                total += count

    def _count(self, path: Path) -> int:
        try:
            with open_regular(path) as file:
                time = os.fstat(file.fileno()).st_mtime_ns
                if self._rows.get(path, (None, 0))[0] != time:
                    self._rows[path] = time, pq.read_metadata(file).num_rows
        except FileNotFoundError:
            return 0
        except (OSError, pa.ArrowException) as error:
            self._leave_out(path, error)
        return self._rows[path][1]

    def _leave_out(self, path: Path, error: Exception) -> None:
        logger.warning("cannot show %s: %s", path, error)
        with suppress(OSError):
            self._rows[path] = path.stat().st_mtime_ns, 0


def _row_of(stored: Mapping[str, Any], pieces: Pieces | None) -> Line:
    named = ("step", "group", "uid", "sample", "data_source", "finished", "reward")
    row: dict[str, Any] = {name: stored[name] for name in named if name in stored}
    texts = {name: shortened(stored[name]) for name in ("prompt", "response", "reference")}
    parts = {
        name.removeprefix(_PART): value for name, value in stored.items() if name.startswith(_PART)
    }
    if stored.get("conversation") is not None:
        texts["conversation"] = shortened(json.loads(stored["conversation"]))
    if stored.get("image_numbers"):
        # Those of the prompt come first.
        given = sum(len(each.get("pictures", ())) for each in pieces_of(texts))
        numbers = stored["image_numbers"]
        row["pictures"] = [picture_name(number) for number in numbers[: len(numbers) - given]]
    token_ids = stored["response_token_ids"]
    count = sum(stored["written"]) if "written" in stored else len(token_ids)
    row |= {"kind": "step", "parts": parts, "response_tokens": count, **texts}
    if pieces is not None and len(stored["response"]) <= MOST_CHARACTERS:
        row["tokens"] = pieces(token_ids)
        for name in _BY_TOKEN:
            if values := stored.get(name):
                row[name] = [float(f"{value:.{_DIGITS}g}") for value in values]
    return row


def shortened(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """Remove the middle of a text longer than `most`; in a conversation, of its pieces."""
    if pieces := _pieces(value):
        share = min(most, max(_LEAST_CHARACTERS, 4 * most // len(pieces)))
        short = [{**piece, "text": shortened(piece["text"], share)} for piece in pieces]
        return {**value, "pieces": short}
    if not isinstance(value, str) or len(value) <= most:
        return value
    half = most // 2
    left_out = len(value) - 2 * half
    return f"{value[:half]}\n[... {left_out:,} characters omitted ...]\n{value[-half:]}"


def characters_of(rows: Iterable[Line]) -> int:
    """Return the number of characters of all texts of samples."""
    return sum(len(text) for row in rows for text in _texts_of(row))


def _texts_of(row: Line) -> Iterator[str]:
    yield from (value for value in row.values() if isinstance(value, str))
    yield from (piece["text"] for piece in pieces_of(row))


def searched_texts(row: Line) -> Iterator[str]:
    """Yield the texts of a sample in which a reader searches for words."""
    yield from (row["prompt"], row["response"])
    yield from (piece["text"] for piece in pieces_of(row))


def pieces_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the pieces of the conversation of a sample; empty if it has none."""
    return _pieces(row.get("conversation"))


def _pieces(value: Any) -> list[dict[str, Any]]:
    """Return the pieces of a conversation; empty if it is something else."""
    found = value.get("pieces") if isinstance(value, dict) else None
    pieces = found if isinstance(found, list) else []
    return [each for each in pieces if isinstance(each, dict) and type(each.get("text")) is str]
