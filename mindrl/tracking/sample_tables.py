"""Tables of samples for a tracker: of each evaluation, and of a step at intervals."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindrl.observability.line_tail import LineTail
from mindrl.report.run_record import step_of_line
from mindrl.report.sample_index import sample_files
from mindrl.report.stored_rows import shortened

COLUMNS = (
    *("step", "prompt", "response", "reference", "reward"),
    *("finished", "response_tokens", "data_source"),
)
"""Columns of each table, by the keys of samples.jsonl."""


@dataclass(frozen=True, kw_only=True)
class SampleTable:
    """Samples of one step."""

    kind: str
    """`step`, `evaluation`, or `evaluation of` a set."""
    step: int
    rows: list[list[Any]]
    """Values in the order of the columns."""


class SampleTables:
    """Finds tables that a tracker does not have yet, while the files of samples grow."""

    def __init__(
        self, folder: Path, *, most_rows: int, interval: int, sent: Mapping[str, int]
    ) -> None:
        """Start after the newest step that was sent of each kind."""
        self.folder, self.most_rows, self.interval, self.sent = folder, most_rows, interval, sent
        self._tails: dict[str, LineTail] = {}
        self._open: dict[str, SampleTable] = {}

    def found(self, *, is_over: bool) -> Iterator[SampleTable]:
        """Yield complete tables: with no new rows since the last call, or followed by another step.

        Raises:
            OutputError: A file cannot be read.
        """
        for kind, path in sample_files(self.folder).items():
            tail = self._tails.setdefault(kind, LineTail(path))
            before = tail.read_bytes
            for _, line in tail.lines():
                yield from self._take(kind, line)
            if (is_over or tail.read_bytes == before) and kind in self._open:
                yield self._open.pop(kind)

    def _take(self, kind: str, line: bytes) -> Iterator[SampleTable]:
        step = step_of_line(line)
        if step is None or step <= self.sent.get(kind, -1):
            return
        if kind == "step" and step % self.interval:
            return
        table = self._open.get(kind)
        if table is None or table.step != step:
            if table is not None:
                yield table
            table = self._open[kind] = SampleTable(kind=kind, step=step, rows=[])
        if len(table.rows) < self.most_rows:
            record = json.loads(line)
            table.rows.append([shortened(record.get(column)) for column in COLUMNS])
