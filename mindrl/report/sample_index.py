"""Index of a run's samples: updated as its files grow, and read one step at a time."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindrl.observability.line_tail import LineTail
from mindrl.observability.output_files import reading_errors
from mindrl.observability.regular_files import open_regular
from mindrl.report.run_record import Line, line_record, step_of_line
from mindrl.report.stored_rows import Pieces, StoredRows, shortened

MOST_SOURCES = 200
"""Maximum number of data sets that are listed."""

_OF_STEP = "step"
_SOURCE = b'"data_source": '


@dataclass(kw_only=True)
class _Block:
    """Consecutive lines of one step in a file."""

    kind: str
    path: Path
    start: int
    stop: int
    count: int


class SampleIndex:
    """Locates the samples of each step in the files of a run, without storing their texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored = StoredRows(folder / "rollouts")
        self.sources: list[str] = []
        """Data sets of the samples, in order of appearance."""
        self._source_texts: set[bytes] = set()
        self._tails: dict[str, LineTail] = {}
        self._blocks: defaultdict[int, list[_Block]] = defaultdict(list)

    @property
    def steps(self) -> list[int]:
        """Sorted steps that have samples."""
        return sorted({*self._blocks, *self.stored.counts})

    @property
    def kinds(self) -> list[str]:
        """Kinds of samples: steps, the evaluation, sets."""
        found = {block.kind for blocks in self._blocks.values() for block in blocks}
        if self.stored.counts:
            found.add(_OF_STEP)
        return [kind for kind in self._tails if kind in found]

    @property
    def total(self) -> int:
        """Number of samples of the run."""
        return sum(self.lines(step) for step in self._blocks) + sum(self.stored.counts.values())

    def is_restarted(self) -> bool:
        """Return whether a file has been replaced.

        Raises:
            OutputError: A file cannot be read.
        """
        return any(tail.is_restarted() for tail in self._tails.values())

    def update(self) -> None:
        """Index new samples in the files.

        Raises:
            OutputError: A file cannot be read.
        """
        for kind, path in sample_files(self.folder).items():
            self._extend(kind, self._tails.setdefault(kind, LineTail(path)))
        self.stored.update()

    def lines(self, step: int) -> int:
        """Return the number of samples of a step that are lines, not stored token by token."""
        return sum(block.count for block in self._of_step(step))

    def line_rows(self, step: int, kind: str = "") -> list[Line]:
        """Read samples that are lines, or those of one kind; the middle of long texts is removed.

        Raises:
            OutputError: A file cannot be read.
        """
        chosen = [block for block in self._of_step(step) if kind in ("", block.kind)]
        return [row for block in chosen for row in _rows_of(block)]

    def stored_rows(self, step: int, pieces: Pieces | None, kind: str = "") -> list[Line]:
        """Read the stored samples of a step; with tokens if their texts are known."""
        return self.stored.rows(step, pieces) if kind in ("", _OF_STEP) else []

    def _extend(self, kind: str, tail: LineTail) -> None:
        for start, line in tail.lines():
            step = step_of_line(line)
            if step is None:
                continue
            self._note_source(line)
            blocks, stop = self._blocks[step], start + len(line)
            if blocks and blocks[-1].kind == kind and blocks[-1].stop == start:
                blocks[-1].stop, blocks[-1].count = stop, blocks[-1].count + 1
            else:
                blocks.append(_Block(kind=kind, path=tail.path, start=start, stop=stop, count=1))

    def _note_source(self, line: bytes) -> None:
        # The last key of a sample; inside a text its quotes would be escaped.
        text = line.rpartition(_SOURCE)[2].rstrip(b"}\r\n")
        if text in self._source_texts or len(self._source_texts) >= MOST_SOURCES:
            return
        self._source_texts.add(text)
        try:
            source = json.loads(text)
        except ValueError:
            return
        if isinstance(source, str) and source:
            self.sources.append(source)

    def _of_step(self, step: int) -> list[_Block]:
        # If all responses of a step are stored, its few logged samples are redundant.
        blocks, is_stored = self._blocks.get(step, []), step in self.stored.counts
        return [block for block in blocks if block.kind != _OF_STEP or not is_stored]


def sample_files(folder: Path) -> dict[str, Path]:
    """Return the files of a run's samples: of its steps, its evaluations, and each set."""
    files = {_OF_STEP: folder / "samples.jsonl", "evaluation": folder / "evaluations.jsonl"}
    sets = sorted((folder / "evaluations").glob("*.jsonl"))
    return files | {f"evaluation of {path.stem}": path for path in sets}


def _rows_of(block: _Block) -> Iterator[Line]:
    try:
        with reading_errors(block.path), open_regular(block.path) as file:
            file.seek(block.start)
            lines = file.read(block.stop - block.start).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        if (record := line_record(line)) is not None:
            yield {"kind": block.kind, **{key: shortened(value) for key, value in record.items()}}
