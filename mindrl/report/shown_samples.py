"""The samples that a page holds: of all steps a few, of the last steps whole groups with tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindrl.report.run_record import Line
from mindrl.report.sample_index import SampleIndex
from mindrl.report.stored_rows import Pieces

MOST_SAMPLES = 4000
"""Where there are more, those of evenly spread steps are shown, each step whole."""
MOST_BYTES = 16 << 20
"""Of all texts together: steps are left out until they are less."""


@dataclass(frozen=True, kw_only=True)
class ShownSamples:
    """What is shown, and of how much."""

    rows: list[Line]
    """With the keys of samples.jsonl; `kind` says of which file."""
    total: int


def shown_samples(index: SampleIndex, pieces: Pieces | None = None) -> ShownSamples:
    """Choose samples of a run; tokens are shown where their texts are known.

    Raises:
        OutputError: A file cannot be read.
    """
    steps = [*index.stored.counts]
    stored = [row for step in steps for row in index.stored_rows(step, pieces)]
    kept = _thinned({step: index.lines(step) for step in index.steps}, MOST_SAMPLES)
    while True:
        rows = [*(row for step in kept for row in index.line_rows(step)), *stored]
        if _size(rows) <= MOST_BYTES or not kept:
            rows.sort(key=lambda row: row["step"])
            return ShownSamples(rows=rows, total=index.total)
        kept = _thinned(dict.fromkeys(kept, 1), len(kept) // 2)


def _thinned(counts: Mapping[int, int], most: int) -> list[int]:
    """Return evenly spread steps, the last one among them, that have `most` samples or fewer."""
    steps = sorted(counts)
    for every in range(1, len(steps) + 1):
        kept = steps[::-1][::every]
        if sum(counts[step] for step in kept) <= most:
            return kept[::-1]
    return []


def _size(rows: Sequence[Line]) -> int:
    return sum(len(value) for row in rows for value in row.values() if isinstance(value, str))
