"""The samples that a page shows: of all steps a few, of the last steps whole groups with tokens."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mindrl.report.run_record import Line, raw_lines, step_of_line

MOST_SAMPLES = 4000
"""Where there are more, those of evenly spread steps are shown, each step whole."""
MOST_CHARACTERS = 8000
"""Of a text; of a longer one both ends are shown."""
MOST_BYTES = 16 << 20
"""Of all texts together: steps are left out until they are less."""
MOST_TOKEN_ROWS = 256
"""Responses that are shown token by token: those of the last steps."""

Pieces = Callable[[Sequence[int]], list[str]]
"""The text of each token."""


@dataclass(frozen=True, kw_only=True)
class ShownSamples:
    """What is shown, and of how much."""

    rows: list[Line] = field(default_factory=list)
    """With the keys of samples.jsonl; `kind` says of which file."""
    total: int = 0


def shown_samples(folder: Path, pieces: Pieces | None = None) -> ShownSamples:
    """Choose the samples of a run folder; tokens are shown where their texts are known."""
    lines: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
    for kind, path in sample_files(folder).items():
        for line in raw_lines(path):
            if (step := step_of_line(line)) is not None:
                lines[step].append((kind, line))
    stored = _stored(folder / "rollouts", pieces)
    # A step whose responses are all there needs no few of them besides.
    for row in stored:
        lines[row["step"]] = [pair for pair in lines[row["step"]] if pair[0] != "step"]
    total = sum(map(len, lines.values())) + len(stored)
    kept = _thinned({step: len(found) for step, found in lines.items()}, MOST_SAMPLES)
    while True:
        rows = [*_parsed(chain.from_iterable(lines[step] for step in kept)), *stored]
        if _size(rows) <= MOST_BYTES or not kept:
            return ShownSamples(rows=sorted(rows, key=lambda row: row["step"]), total=total)
        kept = _thinned(dict.fromkeys(kept, 1), len(kept) // 2)


def sample_files(folder: Path) -> dict[str, Path]:
    """Return the files of samples of a run: of its steps, its evaluations, and of each set."""
    files = {"step": folder / "samples.jsonl", "evaluation": folder / "evaluations.jsonl"}
    sets = sorted((folder / "evaluations").glob("*.jsonl"))
    return files | {f"evaluation of {path.stem}": path for path in sets}


def _thinned(counts: Mapping[int, int], most: int) -> list[int]:
    """Return evenly spread steps, the last one among them, that have `most` samples or fewer."""
    steps = sorted(counts)
    for every in range(1, len(steps) + 1):
        kept = steps[::-1][::every]
        if sum(counts[step] for step in kept) <= most:
            return kept[::-1]
    return []


def _parsed(lines: Iterable[tuple[str, bytes]]) -> Iterator[Line]:
    for kind, line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        yield {"kind": kind, **{key: shortened(value) for key, value in record.items()}}


def shortened(value: Any) -> Any:
    """Leave out the middle of a long text."""
    if not isinstance(value, str) or len(value) <= MOST_CHARACTERS:
        return value
    half = MOST_CHARACTERS // 2
    left_out = len(value) - 2 * half
    return f"{value[:half]}\n[... {left_out:,} characters left out ...]\n{value[-half:]}"


def _size(rows: Sequence[Line]) -> int:
    return sum(len(value) for row in rows for value in row.values() if isinstance(value, str))


def _stored(folder: Path, pieces: Pieces | None) -> list[Line]:
    """Read the whole groups of the newest steps that have been kept."""
    rows: list[Line] = []
    for path in sorted(folder.glob("step-*.parquet"), reverse=True):
        try:
            table = pq.ParquetFile(path).read()
        except (OSError, pa.ArrowException):
            continue  # removed meanwhile, as behind the last steps
        found = [_row_of(each, pieces) for each in table.to_pylist()]
        if rows and len(rows) + len(found) > MOST_TOKEN_ROWS:
            break
        rows += found[:MOST_TOKEN_ROWS]
    return rows


_PART = "reward/"
_BY_TOKEN = ("logprobs", "rollout_logprobs", "advantages")
_DIGITS = 4


def _row_of(stored: Mapping[str, Any], pieces: Pieces | None) -> Line:
    named = ("step", "group", "uid", "sample", "data_source", "finished", "reward")
    row: dict[str, Any] = {name: stored[name] for name in named if name in stored}
    texts = {name: shortened(stored[name]) for name in ("prompt", "response", "reference")}
    parts = {
        name.removeprefix(_PART): value for name, value in stored.items() if name.startswith(_PART)
    }
    token_ids = stored["response_token_ids"]
    row |= {"kind": "step", "parts": parts, "response_tokens": len(token_ids), **texts}
    if pieces is not None and len(stored["response"]) <= MOST_CHARACTERS:
        row["tokens"] = pieces(token_ids)
        for name in _BY_TOKEN:
            if values := stored.get(name):
                row[name] = [float(f"{value:.{_DIGITS}g}") for value in values]
    return row
