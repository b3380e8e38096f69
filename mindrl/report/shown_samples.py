"""Samples of a page: a few of all steps, and whole groups with tokens of the last steps."""

from collections.abc import Mapping

from mindrl.report.run_record import Line
from mindrl.report.sample_index import SampleIndex
from mindrl.report.stored_rows import Pieces, characters_of

MOST_SAMPLES = 4000
"""Maximum number; beyond it evenly spaced steps are shown, each completely."""
MOST_BYTES = 16 << 20
"""Maximum total bytes of texts: steps are dropped until it is met."""


def shown_samples(index: SampleIndex, pieces: Pieces | None = None) -> list[Line]:
    """Select samples of a run; with tokens if their texts are known.

    They have the keys of samples.jsonl; `kind` identifies the file.

    Raises:
        OutputError: A file cannot be read.
    """
    steps = [*index.stored.counts]
    stored = [row for step in steps for row in index.stored_rows(step, pieces)]
    kept = _thinned({step: index.lines(step) for step in index.steps}, MOST_SAMPLES)
    while True:
        rows = [*(row for step in kept for row in index.line_rows(step)), *stored]
        if characters_of(rows) <= MOST_BYTES or not kept:
            rows.sort(key=lambda row: row["step"])
            return rows
        kept = _thinned(dict.fromkeys(kept, 1), len(kept) // 2)


def _thinned(counts: Mapping[int, int], most: int) -> list[int]:
    """Return evenly spaced steps, including the last, with at most `most` samples."""
    steps = sorted(counts)
    for every in range(1, len(steps) + 1):
        kept = steps[::-1][::every]
        if sum(counts[step] for step in kept) <= most:
            return kept[::-1]
    return []
